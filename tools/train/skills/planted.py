"""Long documents: book text with planted sentences and questions about them, plain or as a conversation."""

import numpy as np

from .conversation import CHAT_WEIGHT, END, MODES, THINK, THINK_END, TURN, Renderer
from .tasks import HELD, phrase
from .words import COLOURS, FIRST_NAMES, FOODS, TOWNS, Lexicon, integer, invented_name, is_held_out

VALUE_WEIGHT = 8  # a token of an asked value counts as eight tokens of prose
DROPOUT_FLAG = 128  # in a weight byte: book text, which is seen many times
PROSE = 1 | DROPOUT_FLAG

RELATIONS = Lexicon(
    """secret word,password,lucky number,home town,favourite colour,favourite food,code word,room number,best friend,
    nickname,ticket number,old name,hiding place,second name,new town,year of birth""", ",", general=0
)  # fmt: skip
STATEMENT = ["The {r} of {n} is {v}.", "<note|know|hear|mark|do not forget> that the {r} of {n} is {v}.", "<and|so|well|yes>, the {r} of {n} is {v}.",
             "<and|so|well>, {n}'s {r} is {v}.", "The {r} of {n} is {v}.", "{n}'s {r} is {v}.", "Remember that the {r} of {n} is {v}.",
             "Now the {r} of {n} is {v}.", HELD, "The {r} of {n} is {v}."]  # fmt: skip
QUESTION = ["What is the {r} of {n}?", "What is the {r} of {n}?", "What is {n}'s {r}?", "Say the {r} of {n}.",
            "Which is the {r} of {n}?", "Question: What is the {r} of {n}?",
            "<say|give me|name|repeat|find|look for|I want|I need> <the {r} of {n}|{n}'s {r}>.",
            "What <does it say|is said|is told|is written|did you read|do you find> <about|of|for|as|on> <the {r} of {n}|{n}'s {r}>?",
            "<what|which> <{r} has {n}|{r} does {n} have|was the {r} of {n}|is {n}'s {r}><|, please|, then>?",
            "<the {r} of {n}|{n}'s {r}><?|, please.|: what is it?>", "<do you know|do you remember|can you find|can you tell me> <the {r} of {n}|{n}'s {r}>?",
            "<according to the text|in this text|from the text|as the text says>, <what|which> is <the {r} of {n}|{n}'s {r}>?",
            "What <name|word|thing|value> <is given|does the story give|stands> <as|for> the {r} of {n}?",
            "<which|what> does the <story|book|writer|page> <tell|name|call|have> as <the {r} of {n}|{n}'s {r}>?",
            HELD, "Tell me the {r} of {n}.",
            "What does the text give as the {r} of {n}?"]  # fmt: skip


class Fact:
    """A relation of a name, whose value no text but the planted sentence tells."""

    def __init__(self, random, held: bool, words: list[str], relation: str | None = None):
        self.relation = relation or RELATIONS.draw(random, held and random.random() < 0.5)
        invented = random.random() < 0.85
        self.name = invented_name(random, held) if invented else FIRST_NAMES.draw(random, held)
        if "number" in self.relation or "year" in self.relation:
            self.value = str(integer(random, 5))
        elif self.relation in ("home town", "new town"):
            self.value = TOWNS.draw(random, held)
        elif self.relation == "favourite colour":
            self.value = COLOURS.draw(random, held)
        elif self.relation == "favourite food":
            self.value = FOODS.draw(random, held)
        elif self.relation in ("best friend", "old name", "second name", "nickname"):
            self.value = invented_name(random, held)
        else:
            while True:
                self.value = random.choice(words)
                if is_held_out(self.value) == held:
                    break

    def fill(self, text: str) -> str:
        return text.format(r=self.relation, n=self.name, v=self.value)

    @property
    def answer(self) -> str:
        return self.fill("The {r} of {n} is {v}.")


class Books:
    """Book tokens and where sentences end in them."""

    def __init__(self, ids: np.ndarray, tokenizer):
        self.ids = ids
        tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
        ends = np.array([t in (".", "!", "?", '."', '!"', '?"', ".'") for t in tokens])
        opens = np.array([t.startswith("Ġ") and len(t) > 1 for t in tokens])
        # A sentence may be planted before token i.
        self.breaks = np.flatnonzero(ends[ids[:-1]] & opens[ids[1:]]) + 1

    def window(self, random, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Consecutive tokens, and the places in them where sentences may be planted."""
        start = random.randrange(len(self.ids) - length)
        first, last = np.searchsorted(self.breaks, [start + 1, start + length])
        return self.ids[start : start + length], self.breaks[first:last] - start


def fact_count(random, length: int) -> int:
    if length <= 2048:
        return random.randint(1, 4)
    return random.choice((1, 2, 4, 8, 12, 16) if length <= 8192 else (1, 4, 8, 16, 24, 32))


class Planter:
    def __init__(self, renderer: Renderer, books: Books, words: list[str]):
        self.renderer, self.books, self.words = renderer, books, words
        self.document_begin = renderer.ids("]~!b[")

    def facts(self, random, held: bool, count: int) -> list[Fact]:
        """With different names; in one document of four all have one relation, so that only names tell."""
        relation = RELATIONS.draw(random, held) if count > 1 and random.random() < 0.4 else None
        found = {}
        while len(found) < count:
            fact = Fact(random, held, self.words, relation)
            found.setdefault(fact.name, fact)
        return list(found.values())

    def weave(self, random, length: int, events: list[tuple[float, list[int], list[int]]], prose_weight: int):
        """`length` tokens of books with the events (place in 0 … 1, ids, weights) put in at sentence ends."""
        room = length - sum(len(ids) for _, ids, _ in events)
        prose, breaks = self.books.window(random, room)
        ids, weights, start = [], [], 0
        for place, new, new_weights in sorted(events, key=lambda event: event[0]):
            at = np.searchsorted(breaks, place * room)
            cut = room if place >= 1 or at == len(breaks) else int(breaks[at])
            ids += [prose[start:cut], new]
            weights += [np.full(cut - start, prose_weight, np.uint8), new_weights]
            start = cut
        ids.append(prose[start:])
        weights.append(np.full(room - start, prose_weight, np.uint8))
        return (np.concatenate([np.asarray(part, np.uint16) for part in ids]),
                np.concatenate([np.asarray(part, np.uint8) for part in weights]))  # fmt: skip

    def statement(self, random, held: bool, fact: Fact) -> list[int]:
        return self.renderer.ids(" " + fact.fill(phrase(random, held, STATEMENT, vary=False)))

    def asked(self, random, fact: Fact) -> tuple[list[int], list[int]]:
        """Question and answer in running text."""
        ids = self.renderer.ids
        form = random.random()
        if form < 0.6:
            question = ids(fact.fill(" Question: What is the {r} of {n}? Answer:"))
            restated = ids(fact.fill(" The {r} of {n} is"))
        elif form < 0.8:
            question, restated = ids(fact.fill(" What is {n}'s {r}?")), ids(fact.fill(" {n}'s {r} is"))
        else:
            question, restated = [], ids(fact.fill(" The {r} of {n} is"))
        value = ids(f" {fact.value}.")
        weights = [0] * len(question) + [0 if form >= 0.8 else 1] * len(restated) + [VALUE_WEIGHT] * len(value)
        return question + restated + value, weights

    def prose(self, random, length: int):
        ids, _ = self.books.window(random, length)
        return ids, np.full(length, PROSE, np.uint8)

    def raw(self, random, length: int):
        """Questions at any place behind their sentence, and some at the very end."""
        count = fact_count(random, length)
        events = []
        for fact in self.facts(random, False, count):
            place = random.random()
            statement = self.statement(random, False, fact)
            events.append((place, statement, [0] * len(statement)))
            for _ in range(random.choice((1, 1, 2))):
                later = 1.0 if random.random() < 0.5 else place + (1 - place) * random.random()
                events.append((max(later, place + 1e-6), *self.asked(random, fact)))
        return self.weave(random, length, events, PROSE)

    def chat(self, random, length: int):
        """The text in a user turn, questions behind it (sometimes the first one before it), one turn each."""
        renderer, mode = self.renderer, random.choice(MODES)
        head = renderer.encode_head(mode, random.choice((None, None, "Answer from the text.")), [])
        count = fact_count(random, length)
        facts = self.facts(random, False, count)
        events = []
        for fact in facts:
            statement = self.statement(random, False, fact)
            events.append((random.random(), statement, [0] * len(statement)))
        asked = random.sample(facts, len(facts))[:16]
        if len(asked) > 2 and random.random() < 0.5:
            asked += random.sample(asked, 2)
        tail, tail_weights, first = [], [], random.random() < 0.2
        opening = renderer.ids(f"{TURN}user\n")
        if first:
            opening = renderer.ids(f"{TURN}user\n{asked[0].fill(phrase(random, False, QUESTION))}\n\n")
        for number, fact in enumerate(asked):
            question = fact.fill(phrase(random, False, QUESTION))
            if number == 0:
                ending = "" if first else random.choice(("\n\n", "\n\n", " ")) + question
                tail += renderer.ids(f"{ending}{END}\n")
            else:
                tail += renderer.ids(f"{TURN}user\n{question}{END}\n")
            tail += renderer.fixed[f"{TURN}ai\n"]
            tail_weights += [0] * (len(tail) - len(tail_weights))
            thought = f"{THINK}I look for {fact.name}." if mode == "enabled" else ""
            before = renderer.ids(thought + THINK_END + fact.fill("The {r} of {n} is"))
            value, stop = renderer.ids(f" {fact.value}."), renderer.ids(END)
            tail += before + value + stop
            tail_weights += [CHAT_WEIGHT] * len(before) + [VALUE_WEIGHT] * len(value) + [CHAT_WEIGHT] * len(stop)
            tail += renderer.fixed["\n"]
            tail_weights += [0]
        events.append((2.0, tail, tail_weights))
        body, weights = self.weave(random, length - len(head) - len(opening), events, PROSE)
        front = np.array(head + opening, np.uint16)
        return np.concatenate([front, body]), np.concatenate([np.zeros(len(front), np.uint8), weights])

    def document(self, random, length: int):
        what = random.random()
        if what < 0.35:
            return self.prose(random, length)
        return self.raw(random, length) if what < 0.7 else self.chat(random, length)

    def trial(self, random, length: int, chat: bool, planted: int = 1, mode: str = "disabled"):
        """A held-out case: (ids of the prompt, ids of the answer, place of the planted sentence's first token).

        Names, words and (in chat) the question's phrasing occur in no training text; the books are the caller's.
        Plain: the sentence and the question of the training texts, so that only names and words are new.
        """
        ids = self.renderer.ids
        relation = None if chat else "secret word"
        facts = []
        while len({fact.name for fact in facts}) < planted:
            facts.append(Fact(random, True, self.words, relation))
        asked = facts[0]
        events = [(random.random() * 0.98, self.statement(random, True, fact), None) for fact in facts]
        if chat:
            head = self.renderer.encode_head(mode, None, []) + ids(f"{TURN}user\n")
            thought = f"{THINK}I look for {asked.name}." if mode == "enabled" else ""
            tail = ids(f"\n\n{asked.fill(phrase(random, True, QUESTION))}{END}\n") + ids(f"{TURN}ai\n")
            tail += ids({"adaptive": "", "enabled": THINK, "disabled": THINK_END}[mode])
            answer = ids(thought + THINK_END + asked.answer + END)
            answer = answer[{"adaptive": 0, "enabled": 1, "disabled": 1}[mode] :]
        else:
            head = []
            tail = ids(asked.fill(" Question: What is the {r} of {n}? Answer: The {r} of {n} is"))
            answer = ids(f" {asked.value}.")
        events = [(place, new, [0] * len(new)) for place, new, _ in events]
        marked = events[0][1]
        body, weights = self.weave(random, length - len(head) - len(tail), events, 1)
        planted_at = np.flatnonzero(weights == 0)
        place = next(int(i) for i in planted_at if list(body[i : i + len(marked)]) == list(marked))
        return head + body.tolist() + tail, answer, place + len(head)
