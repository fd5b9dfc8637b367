"""Questions about generated pictures and clips, as tasks whose user messages hold placeholders.

Each maker takes (random, held, atlas, large) and returns a Look: scenes in the order of their placeholders and questions
about them. The first question's message brings the scenes; later ones refer to them. held: phrasings, words and fonts
that no training picture has.
"""

from dataclasses import dataclass

from . import scenes
from .scenes import COLOUR_NAMES, MOTIONS, Scene, Thing, plural
from .tasks import HELD, phrase
from .words import GENERAL, is_held_out, joined

from sprites import SHAPES, Atlas

IMAGE, VIDEO = "]<]image[>[", "]<]video[>["


@dataclass
class Question:
    kind: str  # what it is counted under
    text: str
    answer: str
    thought: str


@dataclass
class Look:
    scenes: list[Scene]
    questions: list[Question]


def ask(random, held: bool, kind: str, phrasings: list, answer: str, thought: str, **values) -> Question:
    return Question(kind, phrase(random, held, phrasings).format(**values), answer, thought)


COUNT_ALL = [
    "How many shapes are there?", "How many shapes do you see?", "Count the shapes.", "How many things are in the picture?",
    "<how many|what number of> <shapes|things|objects> <are there|do you see|can you see|are shown|does it show><| here| in it| in the picture>?",
    "<count|number> <the shapes|the things|all shapes|all the objects><| here| in the picture>.",
    "<tell me|say|I want to know> how many <shapes|things|objects> <there are|you see|are shown>.",
    HELD, "How many shapes are in this picture?", "How many shapes can you count?", "What is the number of shapes?",
]  # fmt: skip
COUNT_SOME = [
    "How many {k} are there?", "How many {k} do you see?", "Count the {k}.", "How many {k} are in the picture?",
    "<how many|what number of> {k} <are there|do you see|can you see|are shown|does it show><| here| in it| in the picture>?",
    "<count|number> <the|all the|all> {k}<| here| in the picture>.",
    "<tell me|say|I want to know> how many {k} <there are|you see|are shown>.",
    HELD, "How many {k} are in this picture?", "How many {k} can you count?", "What is the number of {k}?",
]  # fmt: skip
COLOUR = [
    "What colour is the {k}?", "Which colour does the {k} have?", "What is the colour of the {k}?", "The {k} is what colour?",
    "<what|which> <colour|color> <is|has> the {k}<|in the picture| here>?",
    "<tell me|name|say|give me> the <colour|color> of the {k}.", "<in what|in which> <colour|color> is the {k}<| drawn| painted| shown>?",
    HELD, "What colour is this {k}?", "Which colour is the {k}?", "Say what colour the {k} has.",
]  # fmt: skip
SHAPE = [
    "What shape is the {k} one?", "Which shape is {k}?", "What is the {k} shape?", "What is {k} here?",
    "<what|which> <shape|thing|object> is <{k}|the {k} one><| here| in the picture>?",
    "<tell me|name|say> <the {k} shape|what the {k} shape is|what is {k}|which shape is {k}>.",
    "<what|which> shape <has|does> the {k} <one|thing|object><| have>?",
    HELD, "What shape is {k}?", "Which of the shapes is {k}?", "What kind of shape is the {k} one?",
]  # fmt: skip
DESCRIBE = [
    "What do you see?", "What is in the picture?", "Describe the picture.", "What is shown?", "What does the picture show?",
    "<what|which things|which shapes> <do you see|can you see|are there|are shown><| here| in it| in the picture>?",
    "<describe|list|name|tell me> <the shapes|what you see|what is there|all shapes|what it shows><| from left to right|>.",
    "<look and say|say> what <there is|you see|is in it>.",
    HELD, "What is in this picture?", "Name the shapes.", "What shapes do you see?",
]  # fmt: skip
WHAT = [
    "What is this?", "What do you see?", "What is in the picture?", "What is shown here?", "Name this.",
    "<what|which thing|which shape> <is this|is it|is shown|do you see|is there><| here| in the picture>?",
    "<describe|name|tell me|say> <this|it|the shape|what you see|what this is|what it shows>.",
    HELD, "What is in this picture?", "What can be seen here?", "Name what you see.",
]  # fmt: skip
EXISTS = [
    "Is there a {k}?", "Do you see a {k}?", "Is there a {k} in the picture?", "Does the picture show a {k}?",
    "<is there|do you see|can you see|can you find|does it show|is it showing> <a|any> {k}<| here| in it| in the picture>?",
    "<a {k}: is there one?|tell me if there is a {k}.|I look for a {k}: is there one?>",
    HELD, "Is there a {k} in this picture?", "Can you see a {k} here?", "Is a {k} shown?",
]  # fmt: skip
WHERE = [
    "Where is the {k}?", "Where in the picture is the {k}?", "Where do you see the {k}?", "In which part is the {k}?",
    "<where|in which part|in which corner or side> <is|do you see|do you find> the {k}<| here| in the picture>?",
    "<tell me|say|show me> where the {k} is.", "the {k}: where is it?",
    HELD, "Where is the {k} in this picture?", "Where can you see the {k}?", "Say where the {k} stands.",
]  # fmt: skip
RELATION = [
    "Is the {a} {r} the {b}?", "Is the {a} {r} the {b} in the picture?", "Does the {a} stand {r} the {b}?",
    "<is|do you see|can you see> the {a} {r} the {b}<| here>?", "<tell me|say> if the {a} <is|stands> {r} the {b}.",
    "the {a}: <is it|does it stand> {r} the {b}?",
    HELD, "Is the {a} to be seen {r} the {b}?", "Would you say the {a} is {r} the {b}?",
]  # fmt: skip
BESIDE = [
    "What is {r} the {b}?", "Which shape is {r} the {b}?", "What stands {r} the {b}?", "What do you see {r} the {b}?",
    "<what|which shape|which thing> <is|stands|is shown|do you find> {r} the {b}<| here| in the picture>?",
    "<tell me|name|say> what <is|stands> {r} the {b}.",
    HELD, "What can be seen {r} the {b}?", "Which thing is {r} the {b}?",
]  # fmt: skip
DIGITS = [
    "Which number is shown?", "What number is this?", "Read the number.", "What is the number?", "What number do you see?",
    "<what|which> number <is this|is shown|do you see|can you read|is written><| here| in the picture>?",
    "<read|tell me|say|give me|write> the <number|digits|figures><| you see| in the picture>.",
    HELD, "What number is in this picture?", "Which number can you read?", "Read this number.",
]  # fmt: skip
DIGIT = [
    "Which digit is shown?", "What digit is this?", "Read the digit.", "What is the digit?", "What digit do you see?",
    "<what|which> <digit|number|figure> <is this|is shown|do you see|can you read|is written><| here| in the picture>?",
    "<read|tell me|say|give me|write> the <digit|number|figure><| you see| in the picture>.",
    HELD, "What digit is in this picture?", "Which digit can you read?", "Read this digit.",
]  # fmt: skip
WORD = [
    "What does it say?", "Which word is shown?", "Read the word.", "What is written here?", "What word is this?",
    "<what|which> word <is this|is shown|do you see|can you read|is written><| here| in the picture>?",
    "<read|tell me|say|give me|write> the <word|text><| you see| in the picture>.",
    HELD, "What does this picture say?", "Which word can you read?", "Read this word.",
]  # fmt: skip
LETTERS = [
    "Spell the word.", "Which letters are shown?", "Read it letter by letter.", "What letters do you see?",
    "<what|which> letters <are these|are shown|do you see|can you read|are written><| here| in the picture>?",
    "<spell|read|write|tell me> <it|the word|this word> letter by letter.", "<name|list|give me> the letters.",
    HELD, "Spell this word.", "Which letters can you read?",
]  # fmt: skip
SAME = [
    "Are the two pictures the same?", "Are these pictures the same?", "Do both pictures show the same?", "Same or different?",
    "<are|is> <the two|both|these|these two> <pictures|images> <the same|alike|equal>?",
    "<do|can you see if|tell me if> <both|the two|these two> <pictures|images> show the same<|?| thing?| things?>",
    HELD, "Are these two pictures alike?", "Do the two pictures show the same shapes?",
]  # fmt: skip
MORE = [
    "Which picture has more {k}?", "Which picture shows more {k}?", "In which picture are more {k}?", "Where are more {k}?",
    "<which|which one> of <the two|the|these> pictures <has|shows|holds> more {k}?",
    "<tell me|say|find out> <which picture has|where there are> more {k}.",
    "<in which|in which picture> <do you see|are there|can you count> more {k}?",
    HELD, "Which of the pictures has more {k}?", "Which picture contains more {k}?",
]  # fmt: skip
MOVES_TO = [
    "Which way does the {k} move?", "Where does the {k} go?", "In which direction does the {k} move?", "Where is the {k} moving?",
    "<which way|where|in which direction|in what direction> <does|did> the {k} <move|go|travel|run><| here| in the clip| in the video>?",
    "<tell me|say> <where|which way> the {k} <moves|goes|is going|is moving>.",
    "the {k}: <which way|where> does it <move|go>?",
    HELD, "Which way is the {k} moving?", "In which direction does the {k} go?", "Where is the {k} going?",
]  # fmt: skip
MOVER = [
    "What moves?", "What is moving?", "Which shape moves?", "What moves in the clip?", "Which one is moving?",
    "<what|which shape|which thing|which object> <moves|is moving|is going|changes its place><| here| in the clip| in the video>?",
    "<tell me|say|name> what <moves|is moving|goes>.",
    HELD, "Which of the shapes moves?", "What moves in this video?",
]  # fmt: skip
HAPPENS = [
    "What happens?", "What do you see?", "What happens in the clip?", "Describe the clip.", "What does the video show?",
    "<describe|tell me|say> <what happens|what you see|the video|the clip|what goes on>.",
    "<what|what do you see that> happens<| here| in it| in the video>?",
    HELD, "What happens in this video?", "What is going on?",
]  # fmt: skip
SIDES = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
SAID = {"left of": ("left of", "to the left of"), "right of": ("right of", "to the right of"),
        "above": ("above", "over"), "below": ("below", "under")}  # fmt: skip
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


def listed(things: list[Thing]) -> str:
    return joined([f"a{'n' if t.colour == 'orange' else ''} {t.phrase}" for t in things])


def with_article(thing: Thing) -> str:
    return f"a{'n' if thing.colour == 'orange' else ''} {thing.phrase}"


def in_order(scene: Scene) -> list[Thing]:
    return sorted(scene.things, key=lambda thing: thing.x)


def thought_of(scene: Scene) -> str:
    return f"I see {listed(in_order(scene))}."


def unique(things: list[Thing]) -> list[Thing]:
    """Those that colour and shape together name."""
    names = [thing.phrase for thing in things]
    return [thing for thing in things if names.count(thing.phrase) == 1]


def name_of(random, thing: Thing, things: list[Thing]) -> str:
    """A name that only this one has: with its colour, or in half of the cases without where that is enough."""
    alone = sum(other.name == thing.name for other in things) == 1
    return thing.name if alone and random.random() < 0.5 else thing.phrase


def region(scene: Scene, thing: Thing) -> str | None:
    """Which of nine parts a thing clearly lies in."""
    words = []
    for at, side, names in ((thing.y, scene.height, ("top", "", "bottom")), (thing.x, scene.width, ("left", "", "right"))):
        share = at / side
        if any(abs(share - edge) < 0.05 for edge in (1 / 3, 2 / 3)):
            return None
        words.append(names[int(share * 3)])
    return " ".join(word for word in words if word) or "centre"


def lies(a: Thing, b: Thing, side: str) -> bool | None:
    """Whether a is on that side of b; None where it cannot be said plainly."""
    x, y = SIDES[side]
    ahead, across = (a.x - b.x) * x + (a.y - b.y) * y, abs((a.x - b.x) * y) + abs((a.y - b.y) * x)
    if abs(ahead) < 0.6 * across or abs(ahead) < 0.5 * (a.size + b.size):
        return None
    return ahead > 0


def count_question(random, held: bool, scene: Scene) -> Question:
    things, what = scene.things, random.random()
    thought = f"I see {listed(in_order(scene))}."
    if what < 0.4:
        return ask(random, held, "count", COUNT_ALL, str(len(things)), thought)
    absent = random.random() < 0.12
    if what < 0.7:
        shape = random.choice(SHAPES) if absent else random.choice(things).name
        count = sum(thing.name == shape for thing in things)
        return ask(random, held, "count", COUNT_SOME, str(count), thought, k=plural(shape))
    colour = random.choice(COLOUR_NAMES) if absent else random.choice(things).colour
    count = sum(thing.colour == colour for thing in things)
    word = random.choice(("shapes", "things", "objects"))
    return ask(random, held, "count", COUNT_SOME, str(count), thought, k=f"{colour} {word}")


def shape_questions(random, held: bool, scene: Scene) -> list[Question]:
    """One of every kind that the scene allows."""
    things = scene.things
    found = [count_question(random, held, scene)]
    thought = thought_of(scene)

    def add(kind, phrasings, answer, **values):
        found.append(ask(random, held, kind, phrasings, answer, thought, **values))

    names, colours = [t.name for t in things], [t.colour for t in things]
    named = [t for t in things if names.count(t.name) == 1]
    coloured = [t for t in things if colours.count(t.colour) == 1]
    if named:
        thing = random.choice(named)
        add("colour", COLOUR, thing.colour, k=thing.name)
    if coloured:
        thing = random.choice(coloured)
        add("shape", SHAPE, thing.name, k=thing.colour)
    order = in_order(scene)
    if len(order) == 1:
        add("describe", WHAT, with_article(order[0]))
    elif len(order) <= 4 and all(b.x - a.x > 5 for a, b in zip(order, order[1:])):
        add("describe", DESCRIBE, listed(order))
    there = random.random() < 0.5
    if there:
        thing = random.choice(things)
        shown = thing.phrase if random.random() < 0.7 else thing.name
    else:
        while True:
            shape = random.choice(names) if random.random() < 0.5 else random.choice(SHAPES)
            colour = random.choice(colours) if random.random() < 0.6 else random.choice(COLOUR_NAMES)
            shown = f"{colour} {shape}"
            if shown not in [t.phrase for t in things]:
                break
    add("exists", EXISTS, "yes" if there else "no", k=shown)
    alone = unique(things)
    placed = [(t, region(scene, t)) for t in alone]
    placed = [(t, where) for t, where in placed if where]
    if placed:
        thing, where = random.choice(placed)
        add("position", WHERE, where, k=name_of(random, thing, things))
    pairs = [(a, b) for a in alone for b in alone if a is not b]
    random.shuffle(pairs)
    for a, b in pairs:
        sides = [(side, lies(a, b, side)) for side in SIDES]
        sides = [side for side, true in sides if true]
        if not sides:
            continue
        side = random.choice(sides)
        # BESIDE wants the only thing that may be meant.
        if all(t is a or t is b or lies(t, b, side) is False for t in things) and random.random() < 0.6:
            said = random.choice(SAID[side])
            add("position", BESIDE, with_article(a), r=said, b=name_of(random, b, things))
        else:
            true = random.random() < 0.5
            said = random.choice(SAID[side if true else OPPOSITE[side]])
            add("position", RELATION, "yes" if true else "no", a=name_of(random, a, things), r=said,
                b=name_of(random, b, things))  # fmt: skip
        break
    return found


def shapes(random, held: bool, atlas: Atlas, large: bool) -> Look:
    count = random.choice((1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6))
    scene = scenes.shapes_scene(random, atlas, count, large, distinct=random.random() < 0.4)
    questions = shape_questions(random, held, scene)
    return Look([scene], random.sample(questions, min(len(questions), random.randint(2, 5))))


def places(random, held: bool, atlas: Atlas, large: bool) -> Look:
    """Where things are, alone and beside one another."""
    scene = scenes.shapes_scene(random, atlas, random.choice((1, 2, 2, 3, 3, 4)), large, distinct=True)
    asked = {}
    for _ in range(4):
        for question in shape_questions(random, held, scene):
            if question.kind == "position":
                asked[question.text] = question
    questions = list(asked.values())
    if not questions:
        return shapes(random, held, atlas, large)
    return Look([scene], random.sample(questions, min(len(questions), random.randint(2, 4))))


def counting(random, held: bool, atlas: Atlas, large: bool) -> Look:
    scene = scenes.shapes_scene(random, atlas, random.randint(1, 6), large)
    asked = {}
    for _ in range(random.randint(2, 3)):
        question = count_question(random, held, scene)
        asked[question.text] = question
    return Look([scene], list(asked.values()))


def digits(random, held: bool, atlas: Atlas, large: bool) -> Look:
    length = random.choice((1, 1, 1, 2, 3, 4) if held else (1, 1, 2, 3, 4))
    text = "".join(random.choice("0123456789") for _ in range(length))
    scene = scenes.text_scene(random, atlas, text, large, held)
    thought = f"I read {', '.join(text)}."
    questions = [ask(random, held, "digits", DIGIT if length == 1 else DIGITS, text, thought)]
    if random.random() < 0.25:
        k = "digit" if length == 1 else "number"
        questions.append(ask(random, held, "colour", COLOUR, scene.things[0].colour, thought, k=k))
    return Look([scene], questions)


SHORT_WORDS: dict[bool, list[str]] = {}


def short_words(held: bool) -> list[str]:
    """Lower-case words of 2 to 6 letters; GENERAL holds none of the held-out sets."""
    if held not in SHORT_WORDS:
        source = HELD_WORDS if held else GENERAL
        SHORT_WORDS[held] = [w for w in source if 2 <= len(w) <= 6 and w.isascii() and w.isalpha() and w.islower()]
    return SHORT_WORDS[held]


HELD_WORDS: list[str] = []


def use_held_words(words: list[str]) -> None:
    HELD_WORDS[:] = [word for word in words if is_held_out(word)]
    SHORT_WORDS.clear()


def words(random, held: bool, atlas: Atlas, large: bool) -> Look:
    text = random.choice(short_words(held))
    if not held and random.random() < 0.35:  # not only words: the letters have to be read
        text = "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(1, 6)))
    case = random.random()
    text = text.upper() if case < 0.2 else text.capitalize() if case < 0.35 else text
    scene = scenes.text_scene(random, atlas, text, large, held)
    thought = f"I read {', '.join(text)}."
    read = ask(random, held, "words", WORD, text, thought)
    spelled = ask(random, held, "letters", LETTERS, ", ".join(text), thought)
    return Look([scene], random.choice(([read], [read], [spelled], [spelled, read])))


def changed(random, atlas: Atlas, scene: Scene) -> Scene:
    """The same scene with one thing of another colour, of another shape, or left out."""
    things = [Thing(**vars(thing)) for thing in scene.things]
    number = random.randrange(len(things))
    thing, what = things[number], random.random()
    if what < 0.3 and len(things) > 1:
        del things[number]
    elif what < 0.65:
        taken = thing.colour
        while thing.colour == taken:
            thing.colour = random.choice(COLOUR_NAMES)
        thing.rgb = scenes.draw_colour(random, thing.colour)
    else:
        taken = thing.name
        while thing.name == taken:
            thing.name = random.choice(SHAPES)
        thing.sprite, thing.label = atlas.shape(thing.name), 1 + SHAPES.index(thing.name)
    other = Scene(scene.width, scene.height, things)
    scenes.draw_background(random, other, [t.rgb for t in things])
    return other


def compare(random, held: bool, atlas: Atlas, large: bool) -> Look:
    if random.random() < 0.5:
        first = scenes.shapes_scene(random, atlas, random.choice((1, 1, 2, 2, 3, 4)), large)
        same = random.random() < 0.5
        second = changed(random, atlas, first)
        if same:
            second = Scene(first.width, first.height, [Thing(**vars(thing)) for thing in first.things])
            scenes.draw_background(random, second, [t.rgb for t in second.things])
        thought = f"The first shows {listed(in_order(first))}, the second {listed(in_order(second))}."
        question = ask(random, held, "compare", SAME, "yes" if same else "no", thought)
        return Look([first, second], [question])
    while True:
        counts = random.sample(range(1, 7), 2)
        first, second = (scenes.shapes_scene(random, atlas, count, large and random.random() < 0.5) for count in counts)
        what, k = random.random(), "shapes"
        keep = lambda thing: True  # noqa: E731
        if what < 0.5:
            shape = random.choice(first.things + second.things).name
            k, keep = plural(shape), lambda thing: thing.name == shape
        elif what < 0.7:
            colour = random.choice(first.things + second.things).colour
            k, keep = f"{colour} shapes", lambda thing: thing.colour == colour
        a, b = (sum(map(keep, scene.things)) for scene in (first, second))
        if a != b:
            break
    thought = f"In the first {a}, in the second {b}."
    return Look([first, second], [ask(random, held, "compare", MORE, "the first" if a > b else "the second", thought, k=k)])


def clip(random, held: bool, atlas: Atlas, large: bool) -> Look:
    count, still = random.choice((1, 1, 2, 2, 3)), random.random() < 0.06
    scene = scenes.clip_scene(random, atlas, count, large, still)
    mover = scene.things[0]
    if still:
        thought = f"I see {listed(in_order(scene))}; nothing moves."
        return Look([scene], [ask(random, held, "motion", random.choice((MOVER, HAPPENS)), "nothing moves", thought)])
    thought = f"The {mover.phrase} moves {mover.motion}."
    name = name_of(random, mover, scene.things)
    questions = [ask(random, held, "motion", MOVES_TO, mover.motion, thought, k=name)]
    if random.random() < 0.5:
        questions.append(ask(random, held, "mover", MOVER, f"the {mover.phrase}", thought))
    if random.random() < 0.4:
        questions.append(ask(random, held, "motion", HAPPENS, f"The {mover.phrase} moves {mover.motion}.", thought))
    if random.random() < 0.3:
        thing = random.choice(scene.things)
        questions.append(ask(random, held, "colour", COLOUR, thing.colour, thought, k=thing.name))
    random.shuffle(questions)
    return Look([scene], questions)


PICTURES = [(shapes, 26), (places, 16), (counting, 10), (digits, 16), (words, 16), (compare, 26)]  # with their shares
KINDS = ("count", "colour", "shape", "describe", "exists", "position", "digits", "words", "letters", "compare", "motion", "mover")


def draw_look(random, held: bool, atlas: Atlas, large: bool, video: bool) -> Look:
    if video:
        return clip(random, held, atlas, large)
    maker = random.choices([m for m, _ in PICTURES], [share for _, share in PICTURES])[0]
    return maker(random, held, atlas, large)


def messages(random, look: Look) -> list[dict]:
    """The exchanges, placeholders put into the first question before its text, seldom behind it."""
    marks = [VIDEO if scene.video else IMAGE for scene in look.scenes]
    out = []
    for number, question in enumerate(look.questions):
        text = question.text
        if number == 0:
            way = random.random()
            if way < 0.8:
                text = "".join(marks) + text
            elif way < 0.9:
                text = text + "".join(marks)
            else:
                text = random.choice(("\n", " ")).join([*marks, text])
        out.append({"role": "user", "content": text})
        out.append({"role": "assistant", "content": question.answer, "thought": question.thought})
    return out
