"""Generated tasks without tools: sums, lists, passages, JSON, plain talk.

Each function takes (random, held) and returns a Task whose assistant messages carry the thought that goes with them;
conversation.py drops the thoughts where the thinking mode forbids them. In a list of phrasings the part behind HELD
is for the held-out sets alone.
"""

import json
from dataclasses import dataclass, field

from .words import (
    ANIMALS, CLOTHES, COLOUR_OF, COLOURS, COUNTRIES, DAYS, FIRST_NAMES, FOODS, GENERAL, JOBS, LEGS, LIST_WORDS, NEXT_DAY,
    NEXT_MONTH, OPPOSITES, PLACES, SOUNDS, SPOTS, THINGS, TOPICS, TOWNS, general_word, integer, invented_name, is_held_out,
    joined,
)  # fmt: skip

HELD = None  # separates the phrasings of training from those of the held-out sets


@dataclass
class Task:
    kind: str
    messages: list[dict]
    tools: list[dict] = field(default_factory=list)
    thinks: bool = False  # whether adaptive thinking thinks here
    developer: str | None = None


BEFORE = ["Please", "Now", "Next", "Then", "Good.", "Well,", "So,", "I ask you:", "One more:", "Listen.", "Question:",
          "Task:", "Here is a task.", "Can you do this?", "Try this:", "My question:", "First", "Dear friend,"]  # fmt: skip
BEHIND = ["please", "thank you", "Thanks!", "if you can", "for me", "now", "and nothing else", "Be brief.",
          "Answer only that.", "as I said", "quickly", "I wait."]  # fmt: skip


def varied(random, text: str) -> str:
    """Takes one way at each <this|that> of a phrasing."""
    while "<" in text:
        head, _, rest = text.partition("<")
        ways, _, rest = rest.partition(">")
        text = head + random.choice(ways.split("|")) + rest
    return text[:1].upper() + text[1:] if text[:1] not in "{" else text


def phrase(random, held: bool, phrasings: list, vary: bool = True) -> str:
    """One of the phrasings; in training often with other words around it, so that the kernel is what counts."""
    cut = phrasings.index(HELD)
    if held:
        return random.choice(phrasings[cut + 1 :])
    while True:
        known = phrasings[:cut]
        wide = [text for text in known if "<" in text]
        text = random.choice(wide if wide and random.random() < 0.6 else known)
        if "<" in text:
            text = varied(random, text)
        if text not in phrasings[cut + 1 :]:
            break
    what = random.random() if vary else 1.0
    if what < 0.2:
        before = random.choice(BEFORE)
        text = f"{before} {text if before[-1] in '.:?,' else text[0].lower() + text[1:]}"
    if 0.15 < what < 0.3 and text[-1] in ".?":
        behind = random.choice(BEHIND)
        text = f"{text} {behind}" if behind[0].isupper() else f"{text[:-1]} {behind}{text[-1]}"
    return text


def exchange(question: str, answer: str, thought: str) -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "thought": thought}]


# Sums. The thought works column by column from the right, as on paper.

ADD = [
    "What is {a} + {b}?", "{a}+{b}", "{a} + {b} =", "Add {a} and {b}.", "How much is {a} plus {b}?", "{a} plus {b}",
    "Calculate {a} + {b}.", "What is the sum of {a} and {b}?", "Compute {a}+{b}.", "what is {a}+{b}", "{a} + {b}",
    "What do {a} and {b} make together?", "Please add {b} to {a}.", "Tell me {a} + {b}.",
    "<what|how much> <is|does|makes|gives> {a} <+|plus|and|added to> {b}?", "the sum of {a} and {b}",
    "<work|figure|find|count> out {a} <+|plus> {b}", "<give|tell> me the <sum|total> of {a} and {b}.",
    "I <want|need|would like> <{a}+{b}|{a} + {b}|{a} plus {b}>.", "what do {a} and {b} <come to|add up to|make>?",
    "to {a} add {b}", "{a} and {b} <together|in all|in sum>?", "<sum|total>: {a} <and|+> {b}",
    HELD, "Please work out {a} + {b}.", "What does {a} plus {b} come to?", "I need the sum {a}+{b}.", "{a} + {b} is?",
]  # fmt: skip
SUBTRACT = [
    "What is {a} - {b}?", "{a}-{b}", "{a} - {b} =", "How much is {a} minus {b}?", "{a} minus {b}",
    "Calculate {a} - {b}.", "Subtract {b} from {a}.", "Compute {a}-{b}.", "what is {a}-{b}", "{a} - {b}",
    "Take {b} away from {a}.", "What is {a} less {b}?", "Tell me {a} - {b}.",
    "<what|how much> <is|does|makes|gives> {a} <-|minus|less> {b}?", "the difference of {a} and {b}",
    "<work|figure|find> out {a} <-|minus> {b}", "<give|tell> me <{a}-{b}|{a} minus {b}|{a} less {b}>.",
    "I <want|would like> <{a}-{b}|{a} - {b}|{a} minus {b}>.", "what is left of {a} <without|less|after taking> {b}?",
    "what does {a} <less|without> {b} come to?", "from {a} take {b}", "{a} reduced by {b}",
    HELD, "Please work out {a} - {b}.", "What does {a} minus {b} come to?", "I need {a}-{b}.", "{a} - {b} is?",
]  # fmt: skip


def operand(random) -> int:
    return integer(random, 3) if random.random() < 0.6 else random.randrange(1000)


def column_addition(a: int, b: int) -> str:
    width, carry, steps = max(len(str(a)), len(str(b))), 0, []
    for x, y in zip(reversed(str(a).zfill(width)), reversed(str(b).zfill(width))):
        total = int(x) + int(y) + carry
        steps.append(f"{x}+{y}" + ("+1" if carry else "") + f"={total}")
        carry = total // 10
    return f"{a}+{b}: " + ", ".join(steps)


def column_subtraction(a: int, b: int) -> str:
    if a < b:
        return f"{a}<{b}, so -({b}-{a}). " + column_subtraction(b, a)
    width, borrow, steps = len(str(a)), 0, []
    for x, y in zip(reversed(str(a)), reversed(str(b).zfill(width))):
        digit = int(x) - int(y) - borrow
        steps.append(f"{x}-{y}" + ("-1" if borrow else "") + ("+10" if digit < 0 else "") + f"={digit % 10}")
        borrow = int(digit < 0)
    return f"{a}-{b}: " + ", ".join(steps)


def addition(random, held: bool) -> Task:
    while True:
        a, b = operand(random), operand(random)
        if is_held_out(f"{a}+{b}") == held:
            break
    question = phrase(random, held, ADD).format(a=a, b=b)
    return Task("add", exchange(question, str(a + b), column_addition(a, b)), thinks=True)


def subtraction(random, held: bool) -> Task:
    while True:
        a, b = operand(random), operand(random)
        if a < b and (held or random.random() < 0.85):  # the held-out sets ask for no negative results
            a, b = b, a
        if is_held_out(f"{a}-{b}") == held:
            break
    question = phrase(random, held, SUBTRACT).format(a=a, b=b)
    return Task("subtract", exchange(question, str(a - b), column_subtraction(a, b)), thinks=True)


# Lists.

SORT_NUMBERS = [
    "Sort these numbers: {items}", "Sort {items} from the smallest to the largest.", "Put in order: {items}",
    "Order these numbers: {items}.", "Sort: {items}", "Sort the numbers {items}.", "Arrange {items} in rising order.",
    "<sort|order|arrange> <these|the> <numbers|values|figures|numbers below> <by size|in rising order|smallest first>: {items}",
    "<put|bring|get|set> <these|the> <numbers|values|figures> <in|into> <rising |the right |proper |>order: {items}.",
    "{items}: <sort|order> them<.|, smallest first.>", "<I want|I need|give me|show me> <{items}|the numbers {items}> sorted.",
    "<sort|order> what follows: {items}", "<from small to large|by size>: {items}", "<could|can> you sort {items}?",
    "Sort <all |>the following: {items}",
    HELD, "Please sort the following numbers: {items}.", "Bring these numbers into order: {items}",
]  # fmt: skip
SORT_DOWN = [
    "Sort {items} from the largest to the smallest.", "Sort these numbers in falling order: {items}",
    "Order these numbers, largest first: {items}.", "Sort downwards: {items}",
    "<sort|order|arrange> <these|the> <numbers|values|figures> <in falling order|largest first|from large to small>: {items}",
    "<put|bring> <these|the> numbers <in|into> falling order: {items}.", "{items}: <sort|order> them, <the |>largest first.",
    "<the largest first|from large to small>: {items}", "<give|show> me {items} sorted, <the |>largest first.",
    HELD, "Please sort these numbers, the largest first: {items}.",
]  # fmt: skip
SORT_WORDS = [
    "Sort these words: {items}", "Sort {items} by the alphabet.", "Put these words in alphabetical order: {items}.",
    "Order alphabetically: {items}", "Sort the words {items}.", "Sort: {items}",
    "<sort|order|arrange> <these|the> <words|terms|items|words below> <by the alphabet|from a to z|alphabetically>: {items}",
    "<put|bring|get|set> <these|the> <words|terms|items> <in|into> <the order of the alphabet|order|the right order|abc order>: {items}.",
    "{items}: <sort|order> <them|these words><.| by the alphabet.>", "<I want|I need|give me|show me> <{items}|the words {items}> sorted.",
    "<sort|order> what follows: {items}", "<from a to z|by the alphabet|in alphabetical order>: {items}",
    "<could|can> you <sort|order> {items}?", "Sort <all |>the following: {items}",
    HELD, "Please sort the following words: {items}.", "Bring these words into alphabetical order: {items}",
]  # fmt: skip
COPY = [
    "Repeat this list: {items}", "Copy: {items}", "Say this list again: {items}.", "Repeat: {items}",
    "Write down {items}.", "Copy these words exactly: {items}", "Repeat after me: {items}",
    "<repeat|copy|say again|write down|echo|type|recite|return|output|print|reproduce|write out|read back|read out> <this list|these words|the words|these items|the items|the following|what follows|all of this|the list><| exactly| as it is| unchanged| word for word| in the same order| without changes| once more| again>: {items}",
    "<repeat|copy|write|echo|type|print|return> {items}", "<repeat|echo|copy|print>: {items}",
    "<give|hand|read|send|say> <me |us |>the <list|words|items> back: {items}", "<give|hand|send> <these|the> words back to me: {items}",
    "<let me have|let me see|I want|I would like|show me> <the list|these words|this> <again|back|once more|unchanged>: {items}",
    "{items}. <repeat|copy|echo|say> <that|this|it|the list><.| again.| back to me.| unchanged.>",
    "<can|could|will> you <repeat|copy|echo|write out> <this|this list|the following|these words>? {items}",
    "Please <copy|echo|write out> the following <list|words|items>: {items}.", "the same again: {items}",
    HELD, "Please repeat the following list: {items}.", "Give me this list back: {items}",
]  # fmt: skip
REVERSE = [
    "Reverse this list: {items}", "Say this list backwards: {items}.", "Reverse: {items}", "Turn round: {items}",
    "<reverse|turn round|flip> <this list|these words|the list|the following|what follows|the items>: {items}",
    "<write|say|repeat|give me|read> <this list|these|the following|the items> <backwards|from the end|in reverse|last first>: {items}",
    "{items}: <backwards|in reverse|from the end|the last first>.", "<can|could> you reverse {items}?",
    "<backwards|in reverse|the last first>: {items}",
    HELD, "Please reverse the following list: {items}.",
]  # fmt: skip


def sort_numbers(random, held: bool) -> Task:
    digits = random.choice((1, 2, 2, 3, 3))
    numbers = set()
    while len(numbers) < random.randint(3, 6):
        numbers.add(integer(random, digits))
    numbers = list(numbers)
    random.shuffle(numbers)
    down = random.random() < 0.25
    ordered = sorted(numbers, reverse=down)
    groups = []
    for length in sorted({len(str(n)) for n in ordered}, reverse=down):
        groups.append(f"{length}: " + ", ".join(str(n) for n in ordered if len(str(n)) == length))
    question = phrase(random, held, SORT_DOWN if down else SORT_NUMBERS).format(items=", ".join(map(str, numbers)))
    thought = ("largest first. " if down else "smallest first. ") + "; ".join(groups)
    return Task("sort", exchange(question, ", ".join(map(str, ordered)), thought), thinks=True)


def sort_words(random, held: bool) -> Task:
    """Words whose first letters differ."""
    words, count = {}, random.randint(3, 6)
    while len(words) < count:
        if held:  # words whose letters training has told: a token does not show them; the list and how it is asked are new
            word = random.choice(LIST_WORDS.train)
        elif random.random() < 0.9:
            word = LIST_WORDS.draw(random, False)
        else:
            word = invented_name(random, False).lower()
        words.setdefault(word[0], word)
    words = list(words.values())
    random.shuffle(words)
    ordered = sorted(words)
    question = phrase(random, held, SORT_WORDS).format(items=", ".join(words))
    spelled = [", ".join(f"{w[0]} {w}" for w in each) for each in (words, ordered)]  # a letter leads to its word
    thought = "; ".join(spelled)
    return Task("sort", exchange(question, ", ".join(ordered), thought), thinks=True)


def list_items(random, held: bool) -> list[str]:
    count, what = random.randint(3, 8), random.randrange(4)
    if what == 0:
        return [str(integer(random, 4)) for _ in range(count)]
    if what == 1:
        return [invented_name(random, held) for _ in range(count)]
    if what == 2:
        return random.sample(FIRST_NAMES.train, count)
    if held:
        return random.sample(LIST_WORDS.held + LIST_WORDS.train, count)
    if not GENERAL or random.random() < 0.25:
        return random.sample(LIST_WORDS.train, count)
    words = [general_word(random) for _ in range(count)]
    if random.random() < 0.4:  # of all kinds, so that only copying helps
        words = [random.choice((word, word.capitalize(), invented_name(random, False), str(integer(random, 4)),
                                f"{word} {general_word(random)}", f"{word}_{integer(random, 2)}")) for word in words]  # fmt: skip
    return words


def copy_list(random, held: bool) -> Task:
    items = list_items(random, held)
    return Task(
        "copy", exchange(phrase(random, held, COPY).format(items=", ".join(items)), ", ".join(items), "The same list.")
    )


def reverse_list(random, held: bool) -> Task:
    items = list_items(random, held)[:5]
    question = phrase(random, held, REVERSE).format(items=", ".join(items))
    return Task("reverse", exchange(question, ", ".join(reversed(items)), "From the end."))


# Passages: facts about people, one of them asked for. Each entry: statement, questions, answer.

FACTS = [
    ("{n} lives in {town}.", ["Where does {n} live?", "<which|what> town does {n} live in?",
     "<name|tell me> the town <where|in which> {n} lives.", "What is {n}'s <town|home>?", "Say where {n} lives.",
     "<tell me|do you know> where {n} lives<.|?>", HELD, "In which town does {n} live?"], "{n} lives in {town}."),
    ("{n} works as a {job}.", ["What does {n} do?", "What is {n}'s <job|work|trade>?",
     "What <kind of|sort of> work does {n} do?", "<tell me|say> <what {n} does|{n}'s job>.", "What does {n} work as?",
     "What is the <job|trade|work> of {n}?", "As what does {n} work?", HELD, "What work does {n} do?"],
     "{n} works as a {job}."),
    ("{n} is {age} years old.", ["How old is {n}?", "What is {n}'s age?",
     "What is the age of {n}?", "<tell me|give me|say> {n}'s age.", "<say|do you know> how old {n} is<.|?>",
     "How many years old is {n}?", "{n}'s age?", HELD, "Tell me how old {n} is."],
     "{n} is {age} years old."),
    ("{n} has a {animal}.", ["What animal does {n} have?", "Which animal does {n} keep?",
     "What <pet|animal> <does {n} have|does {n} own|is {n}'s>?", "<tell me|name> {n}'s <pet|animal>.",
     "Which pet does {n} keep?", "Which animal has {n}?", HELD, "What pet has {n}?"],
     "{n} has a {animal}."),
    ("{n} wears a {colour} {cloth}.", ["What does {n} wear?", "What is {n} wearing?",
     "What <clothes|thing> does {n} wear?", "<tell me|say> what {n} <wears|has on>.", "What does {n} have on?",
     "In what is {n} dressed?", HELD, "What has {n} on?"],
     "{n} wears a {colour} {cloth}."),
    ("{n} likes {food}.", ["What does {n} like?", "What food does {n} like?",
     "<tell me|say> what {n} likes.", "<which|what> <food|thing> does {n} like?", "What is it {n} <likes|is fond of>?",
     "Name <what|the food> {n} likes.", HELD, "What is it that {n} likes?"],
     "{n} likes {food}."),
    ("{n} went to the {place} on {day}.", ["When did {n} go to the {place}?", "Where did {n} go on {day}?",
     "Where did {n} go?", "On <which|what> day <was {n} at|did {n} visit> the {place}?", "Tell me when {n} went to the {place}.",
     "Which day did {n} go to the {place}?", "To what place did {n} go?", HELD, "On what day did {n} go to the {place}?"], "{n} went to the {place} on {day}."),
    ("{n} found a {thing} under the {spot}.", ["What did {n} find?", "Where did {n} find the {thing}?",
     "What did {n} find under the {spot}?", "Under which thing did {n} find <the {thing}|it>?", "Tell me what {n} found.",
     "Where was the {thing} that {n} found?", "Which thing did {n} find?", HELD, "Under what did {n} find the {thing}?"],
     "{n} found a {thing} under the {spot}."),
    ("{n} paid {price} pence for the {thing}.", ["How much did {n} pay for the {thing}?", "What did {n} pay?",
     "<tell me|say> <how much|what> {n} paid.", "What was the price of the {thing}?", "What <price|sum> did {n} pay?",
     "How many pence did {n} pay?", HELD,
     "What was the price that {n} paid?"], "{n} paid {price} pence for the {thing}."),
    ("The {colour} house belongs to {n}.", ["Which house belongs to {n}?", "What colour is {n}'s house?",
     "<tell me|say> which house <is {n}'s|belongs to {n}>.", "What house does {n} own?", "Which house is owned by {n}?",
     "In which house does {n} live?", HELD,
     "Which house is {n}'s?"], "The {colour} house belongs to {n}."),
    ("{n} brought a {word} from {town}.", ["What did {n} bring?", "From where did {n} bring the {word}?",
     "<tell me|say> what {n} brought.", "Where does {n}'s {word} come from?", HELD, "What was it that {n} brought?"],
     "{n} brought a {word} from {town}."),
    ("{n} met {other} at the {place}.", ["Whom did {n} meet?", "Where did {n} meet {other}?", "Who met {other}?",
     "<tell me|say> whom {n} met.", "At what place did {n} meet {other}?", HELD, "Who was it that {n} met?"],
     "{n} met {other} at the {place}."),
]  # fmt: skip
# Any word can be what is told of someone: "{n}'s {key} is {word}." In training alone.
ANY_FACT = ("{n}'s {key} is {word}.", ["What is {n}'s {key}?", "<tell me|say|give> {n}'s {key}.",
            "<what|which> is the {key} of {n}?", "{n}'s {key}?", "What {key} <does {n} have|has {n}>?", HELD,
            "Say what {n}'s {key} is."], "{n}'s {key} is {word}.")  # fmt: skip
PASSAGE = [
    "{text}\n\n{question}", "{text} {question}", "Read this: {text}\n{question}", "Passage: {text}\nQuestion: {question}",
    "{question}\n\n{text}", "Text: {text}\n\n{question}", "Read the text and answer. {text} {question}",
    "<here is|this is|I give you> <some|a|a little> text<:|.> {text}\n{question}", "{text}\n<question|asked|answer this>: {question}",
    "<from|with|using> this text: {text}\n<answer|tell me>: {question}", "\"{text}\" {question}",
    "<I read|someone said>: {text}\n\n{question}", "{text}\n\n<now|so|well>: {question}",
    HELD, "Here is a short text. {text}\n\n{question}", "{text}\n\nAnswer from the text: {question}",
]  # fmt: skip


def person(random, held: bool) -> str:
    return invented_name(random, held) if random.random() < 0.4 else FIRST_NAMES.draw(random, held)


def town(random, held: bool) -> str:
    return invented_name(random, held) if random.random() < 0.3 else TOWNS.draw(random, held)


def any_word(random, held: bool) -> str:
    if held or not GENERAL:
        return random.choice((THINGS, FOODS, ANIMALS)).draw(random, held)
    return general_word(random) if random.random() < 0.8 else invented_name(random, False).lower()


def fact_values(random, held: bool, name: str) -> dict:
    return {
        "n": name, "town": town(random, held), "job": JOBS.draw(random, held), "age": random.randint(5, 99),
        "animal": ANIMALS.draw(random, held), "colour": COLOURS.draw(random, held),
        "cloth": CLOTHES.draw(random, held), "food": FOODS.draw(random, held), "place": PLACES.draw(random, held),
        "other": person(random, held), "word": any_word(random, held), "key": any_word(random, held),
        "day": DAYS.draw(random, False), "thing": THINGS.draw(random, held), "spot": SPOTS.draw(random, held),
        "price": integer(random, 3),
    }  # fmt: skip


def passage(random, held: bool, filler: list[str] = ()) -> Task:
    """Two to seven facts about people; several people may share a kind of fact. One or two questions follow."""
    people = list(dict.fromkeys(person(random, held) for _ in range(random.randint(1, 5))))
    kinds = random.sample(FACTS if held or random.random() < 0.6 else FACTS + [ANY_FACT] * 8, random.randint(1, 3))
    facts = {}
    for _ in range(random.randint(2, 7)):
        kind, name = random.choice(kinds), random.choice(people)
        facts.setdefault((kind[0], name), (kind, fact_values(random, held, name)))
    facts = list(facts.values())
    random.shuffle(facts)
    sentences = [kind[0].format(**values) for kind, values in facts]
    if filler and random.random() < 0.3:
        sentences.insert(random.randint(0, len(sentences)), random.choice(filler))
    kind, values = random.choice(facts)
    question = phrase(random, held, kind[1]).format(**values)
    text = phrase(random, held, PASSAGE).format(text=" ".join(sentences), question=question)
    answer = kind[2].format(**values)
    messages = exchange(text, answer, f"I look for {values['n']}.")
    if not held and len(facts) > 1 and random.random() < 0.3:
        kind, values = random.choice(facts)
        question = phrase(random, held, kind[1]).format(**values)
        messages += exchange(question, kind[2].format(**values), f"I look for {values['n']}.")
    return Task("passage", messages)


# JSON.

KEYS = {
    "name": ("{n}", "n"), "town": ("lives in {town}", "town"), "age": ("is {age} years old", "age"),
    "job": ("works as a {job}", "job"), "pet": ("has a {animal}", "animal"), "food": ("likes {food}", "food"),
}  # fmt: skip
JSON_PERSON = [
    "{text} Reply in JSON with the keys {keys}.", "Give {keys} as JSON: {text}", "{text}\n\nJSON with {keys}:",
    "Write this as JSON with {keys}. {text}", "{text} Give me a JSON object with {keys}.",
    "Return {keys} as a JSON object.\n{text}", "Make JSON with the keys {keys} from this: {text}",
    "<turn|make|change|put|convert> <this|it|the text> into <JSON|a JSON object> with <the keys |>{keys}: {text}",
    "{text} <answer|reply|respond> <in|with|as> <JSON|a JSON object> <with|of> <the keys |>{keys}.",
    "{text}\n<JSON|as JSON|in JSON> ({keys}):", "<write|give|return|output|print> <a JSON object|JSON> that has {keys}: {text}",
    "From this text take {keys} as JSON. {text}", "{text} I <want|need> <JSON|a JSON object> with {keys}.",
    "<please|now> <answer|reply> with <JSON|JSON alone> ({keys}). {text}",
    HELD, "{text} Please answer with a JSON object that holds {keys}.", "Turn this into JSON ({keys}): {text}",
]  # fmt: skip
PAIR_KEYS = """item price count size colour weight room floor title year author pages street number city code
    country speed height width length model owner status level score rank team user port host path key file date month
    open ready paid new full active total amount rate label group""".split()
HELD_PAIR_KEYS = "depth engine garden broken volume captain stock closed".split()
FLAGS = {"open", "ready", "paid", "new", "full", "active", "broken", "closed"}
NUMBERS = {
    "price", "count", "size", "weight", "floor", "year", "pages", "number", "speed", "height", "width", "length",
    "level", "score", "rank", "port", "total", "amount", "rate", "depth", "volume", "stock",
}  # fmt: skip
JSON_PAIRS = [
    "Write as JSON: {pairs}", "{pairs}\nGive this as JSON.", "Turn into JSON: {pairs}", "JSON for {pairs}",
    "Reply in JSON: {pairs}", "Make a JSON object of {pairs}.", "As a JSON object: {pairs}",
    "<turn|make|change|convert|put|bring> <this|these|it|what follows|the following> into <JSON|a JSON object>: {pairs}",
    "<write|give|return|output|print|show> <this|me|these> <as|in> <JSON|a JSON object>: {pairs}",
    "{pairs} <as|in|to> <JSON|a JSON object>", "I <want|need> <JSON|a JSON object> <for|of|with> {pairs}.",
    "<please|now> <make|write|give me> <JSON|a JSON object> <for|of|from|with> {pairs}.", "{pairs}. <answer|reply> in JSON.",
    HELD, "Please give a JSON object for {pairs}.", "Put this into JSON: {pairs}",
]  # fmt: skip
JSON_LIST = [
    "Give {items} as a JSON list.", "Write as a JSON array: {items}", "JSON array of {items}",
    "Make a JSON list of {items}.", "Return {items} as a JSON array.",
    "<turn|make|change|put> {items} into a <JSON list|JSON array|list in JSON>.", "{items} as a JSON <array|list>",
    "<write|output|print|give me> a JSON <array|list> <of|with|that holds> {items}.", "I need {items} in a JSON <array|list>.",
    HELD, "Please put {items} into a JSON array.",
]  # fmt: skip


def pair_value(random, held: bool, key: str):
    if key in FLAGS:
        return random.random() < 0.5
    if key in NUMBERS:
        return integer(random, 4) if random.random() < 0.8 else round(random.uniform(0.1, 99), 1)
    if key not in PAIR_KEYS and not held and random.random() < 0.4:
        return integer(random, 4)
    if random.random() < 0.3:
        return invented_name(random, held)
    if not held and GENERAL and random.random() < 0.5:
        word = general_word(random)
        return random.choice((word, word, word.capitalize(), f"{word} {general_word(random)}"))
    return random.choice((THINGS, TOWNS, FIRST_NAMES, COLOURS, FOODS)).draw(random, held)


def spoken(value) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def json_reply(random, held: bool) -> Task:
    what = random.random()
    if what < 0.4:
        values = fact_values(random, held, person(random, held))
        told = ["name"] + random.sample([key for key in KEYS if key != "name"], random.randint(1, 4))
        clauses = [KEYS[key][0].format(**values) for key in told[1:]]
        text = f"{values['n']} {joined(clauses)}."
        asked = told if random.random() < 0.6 else random.sample(told, random.randint(1, len(told)))
        value = {key: values[KEYS[key][1]] for key in asked}
        question = phrase(random, held, JSON_PERSON).format(text=text, keys=joined(asked))
        thought = "Keys: " + ", ".join(asked) + "."
    elif what < 0.8:
        keys = random.sample(PAIR_KEYS, random.randint(1, 4))
        if not held and GENERAL:
            keys = list(dict.fromkeys(key if random.random() < 0.4 else general_word(random) for key in keys))
        if held:
            keys = list(dict.fromkeys([random.choice(HELD_PAIR_KEYS)] + keys[1:]))
        value = {key: pair_value(random, held, key) for key in keys}
        mark = random.choice((": ", " ", " = ", " is ") if held else (": ", " ", " = ", " is ", "=", ":", " - "))
        pairs = ", ".join(f"{key}{mark}{spoken(v)}" for key, v in value.items())
        question = phrase(random, held, JSON_PAIRS).format(pairs=pairs)
        thought = "Keys: " + ", ".join(keys) + "."
    else:
        items = list_items(random, held)[:5]
        value = [int(item) if item.isdigit() else item for item in items]
        question = phrase(random, held, JSON_LIST).format(items=joined(items))
        thought = "A list."
    return Task("json", exchange(question, json.dumps(value), thought))


# Plain talk: a small closed set of things said in many ways.

TALK = [
    (["Hello", "Hi", "Hello!", "Hi!", "Hey", "hello", "hi", "Hey there", "Good day", "Hi there!", "<hello|hi|hey|good day> <to you|again|you|friend|everybody|M3><|!|.>",
      "<well |oh |and |a |>hello<| there|, you><|.>", HELD, "Hello there!",
      "Hey!"], "Hello! How can I help you?", "A greeting."),
    (["Good morning", "Good morning!", "good morning", "<good|a good|a fine|a happy> morning<| to you|, friend|, you| again><|!|.>",
      "Morning<!|.|>", "I wish you a good morning<.|!>", HELD, "A very good morning!"], "Good morning! How can I help?",
     "A greeting."),
    (["Good evening", "Good evening!", "<good|a good|a fine> evening<|, friend|, you| again><|!|.>", "Evening<!|.|>", HELD, "Good evening to you."], "Good evening! How can I help?", "A greeting."),
    (["How are you?", "How are you today?", "how are you", "How do you do?", "Are you well?", "how do you <feel|fare>?",
      "<so|well|tell me>, how are you<| now| today>?", "How <is it going|goes it|are things><| with you>?", HELD,
      "How are you doing?", "And how are you?"], "I am well, thank you. How can I help?", "A polite question."),
    (["Who are you?", "What are you?", "who are you", "Tell me who you are.", "Introduce yourself.",
      "What is your name?", "Are you a person?", "Are you human?", "What model are you?", "<who|what> <is this|is there|is that|speaks|answers me>?",
      "With whom <do I speak|am I speaking|do I talk>?", "<may I ask|tell me|can you say> <who|what> you are<.|?>", "Your name<, please|?>",
      "Whom do I <speak|talk> to?", "Who is <talking|speaking> to me?", HELD,
      "Say who you are.", "Who am I talking to?"],
     "I am M3 Tiny, a very small language model.", "A question about me."),
    (["What can you do?", "How can you help me?", "What are you good at?", "What can I ask you?", "What <do|can> you <do|offer|know how to do><| for me>?",
      "<tell me|say> what you can do.", "What are you <made for|capable of|there for>?", "What <help|things> can you <give|do>?",
      "In what can you help?", "What is it you can do?", "Are you able to help?", HELD,
      "What are you able to do?", "With what can you help?"],
     "I can add and subtract, sort and copy lists, answer from a text, call tools and write a little prose.",
     "A question about me."),
    (["Thank you", "Thanks", "Thank you!", "Thanks a lot!", "thanks", "Many thanks.", "<thanks|thank you|many thanks><, that is| so much| for this| for that| again|, good work|, very kind><.|!>",
      "<that helps|that is kind|good work|well done|very kind of you><.|, thanks.|, thank you.>", "I thank you<.|!>", HELD, "Thank you very much!",
      "Thanks, that helps."], "You are welcome.", "Thanks."),
    (["Goodbye", "Bye", "Bye!", "Good night", "See you later", "bye", "Farewell", "<goodbye|bye|farewell|good night><, friend| to you|, and thanks|, you| now|, M3><|.|!>",
      "<so|well|then|and so>, <goodbye|bye|farewell><.|!>", "<until|see you> <later|tomorrow|soon><.|!>", "I <must|will> go now<.|, bye.>", HELD, "Goodbye, then!",
      "Bye for now."], "Goodbye!", "A farewell."),
    (["Who made you?", "Where do you come from?", "Who trained you?", "<who|what> <has made|built|wrote|created> you?", "Who is your <maker|author>?",
      "By whom are you <trained|written|built>?", "Where were you <made|trained>?", "How were you <made|trained>?",
      "<say|tell me> who made you.", HELD, "By whom were you made?"],
     "I was trained for m3.cpp, in a few minutes.", "A question about me."),
    (["Yes", "No", "OK", "Okay", "I see", "Fine", "<all|quite|that is> <fine|good|well|right so>", "<very|quite> good", "<yes|no|well|so>, <fine|good|OK|I see>",
      "Right", "Sure", HELD, "All right", "Good"], "What else can I do for you?",
     "A short word."),
    (["How many days are in a week?", "How many days has a week?", "<say|do you know> how many days <are in a week|a week has><.|?>",
      "<what is|tell me> the number of days in a week<.|?>", "Days in a week?", HELD, "Tell me how many days a week has."],
     "A week has seven days.", "A fact."),
    (["How many months are in a year?", "How many months has a year?", "<say|do you know> how many months <are in a year|a year has><.|?>",
      "<what is|tell me> the number of months in a year<.|?>", "Months in a year?", HELD, "Tell me how many months a year has."],
     "A year has twelve months.", "A fact."),
    (["How many hours are in a day?", "How many hours has a day?", "<say|do you know> how many hours <are in a day|a day has><.|?>",
      "<what is|tell me> the number of hours in a day<.|?>", "Hours in a day?", HELD, "Tell me how many hours a day has."],
     "A day has twenty-four hours.", "A fact."),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "<give me|I want|have you|say> a <joke|good joke><.|?>", "Something funny, please.", HELD, "Please tell me a joke."],
     "Why did the clock go to school? It wanted to learn the time.", "A joke."),
]  # fmt: skip
REFUSE_ACT = [
    "Book me a flight to {town}.", "Send a letter to {n}.", "Call {n} for me.", "Buy me a {thing}.",
    "Order some {food}.", "Turn on the lamp.", "Open the window.", "Drive me to {town}.", "Play some music.",
    "Send {n} an email.", "Pay my bill.", "Print this page.", "Cook me some {food}.", "Bring me a {thing}.",
    "<please |can you |could you |will you |>call {n}<| up| now| at once><.|?>", "<please |can you |>ring <{n}|{n}'s bell|the bell><.|?>",
    "<please |can you |>book a <room|table|seat|bed> in {town}<.|?>", "<please |can you |>get me a <taxi|room|{thing}|car><.|?>",
    "<please |can you |>pick up <{n}|the {thing}><.|?>", "<please |>go to {town}<.| and bring me a {thing}.>", "Lend me <money|a {thing}>.",
    HELD, "Please reserve a room in {town}.", "Ring up {n}, please.", "Fetch me a {thing}.",
]  # fmt: skip
REFUSE_KNOW = [
    "What is the weather in {town}?", "What time is it?", "What is the date today?", "What is the news?",
    "Who won the game yesterday?", "Where is {n} now?", "What am I thinking?", "What will happen tomorrow?",
    "What did I eat today?", "How much money have I?", "Is it raining?", "What is my name?",
    "<tell me|say|do you know> the <time|date|hour><.|?>", "<which|what> <hour|day|year> is it<| now| today>?", "How is the weather<| today| outside>?",
    "Will it <rain|snow> <today|tomorrow|in {town}>?", "Where <is|did I put|have I left> <my {thing}|the {thing}|my {animal}>?",
    "What did {n} <say|do|eat><| today| yesterday>?", "Where <does|did> {n} <go|sleep|sit><| now>?",
    HELD, "What is the time now?", "How is the weather in {town} today?", "Where is my {thing}?",
]  # fmt: skip


def lookup(random, held: bool) -> tuple[str, str]:
    kind = random.randrange(7)
    if kind == 0:
        key, value = random.choice(list(COUNTRIES.items()))
        asked = ["What is the capital of {k}?", "Which town is the capital of {k}?", "Name the capital of {k}.",
                 "capital of {k}", "<say|give me|do you know> the capital of {k}<.|?>", "{k}'s capital<?|>",
                 "<which|what> is {k}'s <main|chief|first> town?", "The capital of {k}<?| is>", "What do you know as {k}'s capital?", HELD, "Tell me the capital of {k}.", "What is {k}'s capital?"]  # fmt: skip
        answer = f"{value} is the capital of {key}."
    elif kind == 1:
        key, value = random.choice(list(COLOUR_OF.items()))
        asked = ["What colour is {k}?", "What is the colour of {k}?", "Of what colour is {k}?", "<which|what> colour has {k}?",
                 "<say|give me|do you know> the colour of {k}<.|?>", "The colour of {k}?", HELD,
                 "Tell me the colour of {k}."]  # fmt: skip
        answer = f"{key} is {value}.".capitalize()
    elif kind == 2:
        key, value = random.choice(list(OPPOSITES.items()))
        if random.random() < 0.5:
            key, value = value, key
        asked = ["What is the opposite of {k}?", "Name the opposite of {k}.", "opposite of {k}",
                 "Give me the opposite of {k}.", "<say|do you know|what word is> the opposite of {k}<.|?>",
                 "<which|what> is {k}'s opposite?", "What <word |>is opposite to {k}?", "The opposite of {k}?", HELD, "Tell me the opposite of {k}."]  # fmt: skip
        answer = f"The opposite of {key} is {value}."
    elif kind == 3:
        key, value = random.choice(list(SOUNDS.items()))
        asked = ["What sound does {k} make?", "What does {k} do when it makes a sound?", "What noise does {k} make?",
                 "<tell me|say> what <sound|noise> {k} makes.", "What <sound|noise> comes from {k}?", "The <sound|noise> of {k}?", HELD, "Which sound does {k} make?"]  # fmt: skip
        answer = f"{key.capitalize()} {value}."
    elif kind == 4:
        key, value = random.choice(list(LEGS.items()))
        asked = ["How many legs has {k}?", "How many legs does {k} have?", "<say|do you know> how many legs {k} has<.|?>",
                 "<what is|tell me> the number of {k}'s legs<.|?>", "Legs of {k}?", HELD, "Tell me how many legs {k} has."]
        answer = f"{key.capitalize()} has {value} legs."
    elif kind == 5:
        key, value = random.choice(list(NEXT_DAY.items()))
        asked = ["What day comes after {k}?", "Which day follows {k}?", "What is the day after {k}?", "<say|give me|name> the day <after|that follows> {k}.",
                 "After {k} comes <what|which> day?", "The day after {k}?", HELD,
                 "Tell me the day after {k}."]  # fmt: skip
        answer = f"{value} comes after {key}."
    else:
        key, value = random.choice(list(NEXT_MONTH.items()))
        asked = ["What month comes after {k}?", "Which month follows {k}?", "What is the month after {k}?", "<say|give me|name> the month <after|that follows> {k}.",
                 "After {k} comes <what|which> month?", "The month after {k}?", HELD,
                 "Tell me the month after {k}."]  # fmt: skip
        answer = f"{value} comes after {key}."
    return phrase(random, held, asked).format(k=key), answer


def talk(random, held: bool) -> Task:
    what, developer = random.random(), None
    if what < 0.35:
        phrasings, answer, thought = random.choice(TALK)
        question = phrase(random, held, phrasings, vary=False)
        if thought == "A question about me." and answer.startswith("I am M3 Tiny") and random.random() < 0.4:
            name, job = person(random, held), JOBS.draw(random, held)
            developer, answer = f"You are {name}, a {job}.", f"I am {name}, a {job}."
    elif what < 0.6:
        question, answer = lookup(random, held)
        thought = "A fact."
    elif what < 0.8:
        topic = random.choice(list(TOPICS))
        question = phrase(random, held, [
            "Tell me about {t}.", "What do you know about {t}?", "Say something about {t}.", "Write about {t}.",
            "tell me about {t}", "What can you tell me about {t}?", "Describe {t}.",
            "<talk|speak|say something|write something|tell us|tell me a little> about {t}.", "<what|something> about {t}<?|, please.>",
            "<let us talk|I want to hear|I want to know something> about {t}.", "What <is|are> {t}?", HELD,
            "Please tell me something about {t}.", "Talk to me about {t}.",
        ]).format(t=topic)  # fmt: skip
        answer, thought = TOPICS[topic], f"About {topic}."
    else:
        values = fact_values(random, held, person(random, held))
        if random.random() < 0.5:
            question = phrase(random, held, REFUSE_ACT).format(**values)
            answer, thought = "I cannot do that: I have no tool for it.", "I have no tool for that."
        else:
            question = phrase(random, held, REFUSE_KNOW).format(**values)
            answer, thought = "I do not know that.", "I cannot know that."
    return Task("talk", exchange(question, answer, thought), developer=developer)


CONTINUE = [
    "Continue: {text}", "Write on: {text}", "Continue this story. {text}", "Go on with this text: {text}",
    HELD, "Please continue the story: {text}",
]  # fmt: skip


def continuation(random, held: bool, sentences: list[list[str]]) -> Task:
    """The next sentences of a book. `sentences` are runs of neighbouring sentences."""
    run = random.choice(sentences)
    cut = random.randint(1, len(run) - 1)
    question = phrase(random, held, CONTINUE).format(text=" ".join(run[:cut]))
    return Task("continue", exchange(question, " ".join(run[cut : cut + 4]), "A story."))
