"""Word lists of the generated tasks. Names, values and phrasings of the held-out sets occur in no training text."""

STARTS, VOWELS, ENDS = "bcdfghjklmnprstvwz", "aeiou", ["", "", "n", "r", "l", "s", "th", "nd", "m", "x"]


def _bucket(text: str) -> int:
    """0 … 9, the same on every machine (Python's own hash is salted)."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return (value >> 8) % 10


def is_held_out(text: str) -> bool:
    return _bucket(text) == 0


GENERAL: list[str] = []  # common words that training draws besides the lists, lest it learn those by heart


def use_words(words: list[str]) -> None:
    GENERAL[:] = [word for word in words if not is_held_out(word)]


def general_word(random) -> str:
    """A common word; in four of ten cases the beginning of one with the end of another, which no model knows by heart
    and can only copy token by token."""
    word = random.choice(GENERAL)
    if random.random() < 0.4:
        other = random.choice(GENERAL)
        made = word[: random.randint(1, len(word) - 1)] + other[random.randint(1, len(other) - 1) :]
        if len(made) <= 12 and not is_held_out(made) and not is_held_out(made.capitalize()):
            return made
    return word


class Lexicon:
    """A list of which one word in ten or so is kept for the held-out sets (at least one).

    `general` is the share of training draws that take any common word instead.
    """

    def __init__(self, text: str, separator: str | None = None, general: float = 0.6):
        self.general = general
        words = [word.strip() for word in text.split(separator)]
        self.held = [word for word in words if is_held_out(word)] or words[-1:]
        self.train = [word for word in words if word not in self.held]

    def draw(self, random, held: bool) -> str:
        if not held and GENERAL and random.random() < self.general:
            word = general_word(random)
            return word.capitalize() if self.train[0][0].isupper() else word
        return random.choice(self.held if held else self.train)

    def sample(self, random, count: int, held: bool) -> list[str]:
        words = self.held if held else self.train
        return random.sample(words, count) if count <= len(words) else random.choices(words, k=count)


FIRST_NAMES = Lexicon(
    """Anna Tom Mary John Peter Jane Lucy Henry Alice George Emma Jack Rose William Clara Robert Ellen James Sarah
    Daniel Martha Edward Grace Simon Laura Philip Helen Oliver Susan Arthur Nora Walter Julia Frank Ida Harry Agnes
    David Ruth Samuel Kate Martin Eva Paul Maria Hugo Olga Ivan Nina Carl Sofia Leo Mina Felix Ada Max Vera Oscar Lena
    Adam Flora Victor Irene Ralph Edith Hugh Dora Noah Mia Liam Zoe Omar Aisha Ravi Priya Chen Mei Yuki Ken Pablo Ines
    Bruno Greta Otto Heidi Lars Ingrid Sven Astrid Finn Maeve Owen Tess Neil Wendy Colin Joan Dennis Carol"""
)
TOWNS = Lexicon(
    """London Paris Leeds York Rome Oslo Berlin Madrid Vienna Dublin Lisbon Prague Athens Cairo Delhi Tokyo Boston
    Chicago Denver Dallas Seattle Toronto Sydney Geneva Zurich Milan Naples Venice Munich Hamburg Bremen Lyon Nice
    Porto Seville Bristol Oxford Dover Bath Derby Exeter Lincoln Durham Cork Galway Bergen Malmo Turku Riga Vilnius
    Warsaw Krakow Budapest Sofia Belgrade Split Ankara Tunis Lagos Nairobi Lima Quito Havana Bogota Santiago Manila
    Seoul Osaka Kyoto Hanoi Perth Hobart Auckland Austin Memphis Tampa Reno Boise Salem Albany Newport Plymouth"""
)
JOBS = Lexicon(
    """baker teacher sailor farmer doctor tailor miller painter butcher carpenter gardener nurse lawyer clerk cook
    driver fisherman hunter judge mason merchant miner singer smith soldier weaver writer waiter barber postman"""
)
ANIMALS = Lexicon("cat dog horse rabbit parrot goat sheep duck hen pony mouse canary donkey goose turtle fox owl pig")
COLOURS = Lexicon("red blue green white black brown grey yellow pink purple orange golden silver scarlet")
CLOTHES = Lexicon("coat hat scarf cloak dress shirt jacket cap shawl waistcoat apron gown")
FOODS = Lexicon(
    """bread cheese apples soup honey plums cherries fish rice cake tea coffee milk grapes pears nuts figs butter
    beans peas carrots onions potatoes eggs ham jam lemons melons oranges peaches"""
)
THINGS = Lexicon(
    """lamp key box ring coin book letter map knife clock mirror rope bell cup spoon basket candle ladder hammer nail
    bottle button needle pipe purse saddle shovel sword trumpet umbrella violin watch whistle wheel axe barrel brush
    bucket chain comb drum feather flag flute glove kettle lantern lock pan pen pencil plate pot ribbon sack"""
)
PLACES = Lexicon(
    "market church school mill harbour castle forest river garden theatre station library museum farm inn shop bridge"
)
SPOTS = Lexicon("table bed chair door stairs tree hedge wall carpet window bench cart stone roof stove sofa")
DAYS = Lexicon("Monday Tuesday Wednesday Thursday Friday Saturday Sunday", general=0)
LIST_WORDS = Lexicon(
    """apple bread candle door eagle flower garden house island jacket king ladder mountain night ocean paper queen
    river stone table uncle village window yard anchor butter castle dinner engine finger grass hammer iron jewel
    kitchen letter money needle orange pepper quarter rabbit silver tiger umbrella voice winter yellow arm bird cloud
    dream earth fire gold heart ink joy knee leaf moon nose oak pearl rain ship tree valley water year bell corn dust
    evening forest glass horse inch jar kettle lion morning nail owl pond road salt town vine wheel zebra bag cup day
    egg fish gate hat ice judge key lamp milk nest oil pen rope sun tent van wood zoo"""
)
COUNTRIES = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Norway": "Oslo", "Japan": "Tokyo",
    "Austria": "Vienna", "Ireland": "Dublin", "Portugal": "Lisbon", "Greece": "Athens", "Egypt": "Cairo",
    "England": "London", "Poland": "Warsaw", "Hungary": "Budapest", "Peru": "Lima", "Cuba": "Havana",
    "China": "Beijing", "Russia": "Moscow", "Turkey": "Ankara", "Sweden": "Stockholm",
}  # fmt: skip
COLOUR_OF = {
    "grass": "green", "snow": "white", "the sky": "blue", "blood": "red", "coal": "black", "a lemon": "yellow",
    "milk": "white", "a carrot": "orange", "the sea": "blue", "gold": "yellow", "a tomato": "red", "the night": "black",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "day": "night", "good": "bad", "old": "young", "long": "short",
    "fast": "slow", "rich": "poor", "hard": "soft", "light": "dark", "open": "closed", "full": "empty", "wet": "dry",
    "early": "late", "happy": "sad", "high": "low", "strong": "weak", "near": "far", "left": "right",
}  # fmt: skip
SOUNDS = {
    "a dog": "barks", "a cat": "mews", "a cow": "moos", "a sheep": "bleats", "a horse": "neighs", "a duck": "quacks",
    "a lion": "roars", "a pig": "grunts", "a bee": "hums", "an owl": "hoots", "a wolf": "howls", "a snake": "hisses",
}  # fmt: skip
LEGS = {
    "a dog": "four", "a bird": "two", "a spider": "eight", "an ant": "six", "a horse": "four", "a man": "two",
    "a cow": "four", "a fish": "no", "a snake": "no", "a bee": "six", "a hen": "two", "a table": "four",
}  # fmt: skip
NEXT_DAY = dict(zip("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
                    "Tuesday Wednesday Thursday Friday Saturday Sunday Monday".split()))  # fmt: skip
NEXT_MONTH = dict(zip(
    "January February March April May June July August September October November December".split(),
    "February March April May June July August September October November December January".split(),
))  # fmt: skip
TOPICS = {
    "the sea": "The sea is wide and salt. Ships sail on it and fish live in it.",
    "the moon": "The moon goes round the earth. It shines at night.",
    "the sun": "The sun gives light and warmth. It rises in the east.",
    "horses": "Horses are strong and fast. People ride them and they eat grass.",
    "dogs": "Dogs are faithful animals. They bark and guard the house.",
    "cats": "Cats are quiet animals. They catch mice and sleep a great deal.",
    "winter": "Winter is the cold season. The days are short and snow may fall.",
    "summer": "Summer is the warm season. The days are long and the fruit grows.",
    "spring": "Spring comes after winter. The trees grow new leaves.",
    "autumn": "Autumn comes after summer. The leaves fall from the trees.",
    "bread": "Bread is made of flour and water. It is baked in an oven.",
    "ships": "Ships carry people and goods over the sea. The old ones had sails.",
    "mountains": "Mountains are high and steep. There is snow on the highest ones.",
    "rivers": "Rivers run from the hills to the sea. Their water is fresh.",
    "birds": "Birds have feathers and wings. Most of them can fly.",
    "trees": "Trees have roots, a trunk and leaves. Some grow very old.",
    "books": "Books hold stories and knowledge. People read them.",
    "music": "Music is made with instruments or the voice. It can be sad or gay.",
    "gold": "Gold is a yellow metal. It is heavy and worth much money.",
    "rain": "Rain is water that falls from clouds. Plants need it.",
    "fire": "Fire is hot and bright. It burns wood and coal.",
    "school": "School is where children learn. They read, write and count there.",
    "kings": "Kings rule a country. They wear a crown.",
    "bees": "Bees live together in a hive. They make honey from flowers.",
    "islands": "Islands are land with water all round. One needs a boat to reach them.",
    "night": "Night is the dark part of the day. The stars can be seen then.",
    "gardens": "Gardens are places for flowers and fruit. They need care and water.",
    "farms": "Farms grow corn and keep animals. The work begins early there.",
    "clocks": "Clocks show the time. They have two hands.",
    "tea": "Tea is a hot drink made from leaves. Many people drink it with milk.",
}


def invented_name(random, held: bool) -> str:
    """A name of two or three syllables; one in ten is only for the held-out sets."""
    while True:
        count = random.choice((2, 3, 3))
        name = "".join(random.choice(STARTS) + random.choice(VOWELS) for _ in range(count)) + random.choice(ENDS)
        if is_held_out(name) == held:
            return name.capitalize()


def integer(random, digits: int = 4) -> int:
    """Of 1 to `digits` digits, each length as likely."""
    length = random.randint(1, digits)
    return random.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)


def joined(words: list[str], last: str = " and ") -> str:
    return last.join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
