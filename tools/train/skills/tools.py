"""Generated tool tasks: calls with typed arguments taken from the user's words, and answers from a tool's result."""

import json

from .tasks import HELD, Task, addition, exchange, lookup, passage, phrase, subtraction, talk, town, varied
from .words import (
    COLOURS, DAYS, FIRST_NAMES, FOODS, GENERAL, PLACES, THINGS, TOWNS, Lexicon, general_word, integer, invented_name,
    joined,
)  # fmt: skip

VERBS = Lexicon(
    """get set find make open close start stop send read write delete create update add remove list show check move
    copy rename lock unlock order book buy sell pay print play record search count measure convert save load share
    plan cancel schedule call invite fetch query build mark label"""
)
NOUNS = Lexicon(
    """room door light alarm song file note task event order ticket message letter report table page picture account
    price score map route train flight hotel car lamp heater fan camera printer playlist calendar reminder contact
    invoice product stock user group folder document form label package parcel garden pump motor valve sensor oven
    recipe book list window clock meeting game bill"""
)
STRING_KEYS = Lexicon(
    """city name title place subject target source owner author colour item category topic label folder station
    customer product destination origin guest driver company street country team song artist brand material"""
)
INTEGER_KEYS = Lexicon(
    "count days minutes hours number size level page year limit floor port width height id seats copies volume amount"
)
NUMBER_KEYS = Lexicon("price weight temperature rate speed length distance score ratio cost")
FLAG_KEYS = Lexicon("urgent loud public private enabled repeat silent hidden fast secure shared express daily")
ENUM_KEYS = {
    "mode": ["fast", "slow", "auto"], "unit": ["metric", "imperial"], "order": ["up", "down"], "kind": ["new", "old"],
    "format": ["text", "html", "pdf"], "priority": ["low", "normal", "high"], "state": ["on", "off"],
    "size": ["small", "medium", "large"], "direction": ["left", "right"], "class": ["first", "second"],
    "shape": ["round", "square", "flat"], "season": ["summer", "winter"],
}  # fmt: skip
HELD_ENUM_KEYS = {"shape", "season"}
ARRAY_KEYS = Lexicon("items names tags cities guests words numbers members files topics")


def any_word(random, held: bool) -> str:
    what = random.random()
    if what < 0.35:
        return invented_name(random, held)
    if not held and GENERAL and what < 0.6:
        return general_word(random)
    return random.choice((TOWNS, FIRST_NAMES, THINGS, FOODS, PLACES, COLOURS)).draw(random, held)


def decimal(random) -> float:
    return float(f"{integer(random, 3)}.{random.randint(1, 9)}")


class Parameter:
    """Name, JSON schema, a drawn value and the words a user has for the two."""

    def __init__(self, random, held: bool):
        what = random.random()
        self.loose = False  # the value alone, without the parameter's name, may stand for it
        if what < 0.4:
            self.name, self.schema = STRING_KEYS.draw(random, held), {"type": "string"}
            self.value = " ".join(any_word(random, held) for _ in range(random.choice((1, 1, 1, 2))))
            self.loose = True
        elif what < 0.65:
            self.name, self.schema = INTEGER_KEYS.draw(random, held), {"type": "integer"}
            self.value = integer(random, 5)
        elif what < 0.75:
            self.name, self.schema = NUMBER_KEYS.draw(random, held), {"type": "number"}
            self.value = decimal(random) if random.random() < 0.7 else integer(random, 3)
        elif what < 0.84:
            self.name, self.schema = FLAG_KEYS.draw(random, held), {"type": "boolean"}
            self.value = random.random() < 0.5
        elif what < 0.93:
            keys = [key for key in ENUM_KEYS if (key in HELD_ENUM_KEYS) == held]
            self.name = random.choice(keys)
            values = random.sample(ENUM_KEYS[self.name], len(ENUM_KEYS[self.name]))
            if not held and GENERAL and random.random() < 0.6:
                self.name = random.choice((self.name, general_word(random)))
                values = list(dict.fromkeys(general_word(random) for _ in range(random.randint(2, 4))))
            self.schema = {"type": "string", "enum": values}
            self.value = random.choice(values)
        else:
            self.name = ARRAY_KEYS.draw(random, held)
            whole = self.name == "numbers"
            self.schema = {"type": "array", "items": {"type": "integer" if whole else "string"}}
            count = random.randint(2, 4)
            self.value = [integer(random, 3) if whole else any_word(random, held) for _ in range(count)]

    def words(self, random) -> str:
        if isinstance(self.value, bool):
            return random.choice(("true", "yes", "on") if self.value else ("false", "no", "off"))
        if isinstance(self.value, list):
            return joined([str(value) for value in self.value])
        if isinstance(self.value, str) and "enum" not in self.schema and random.random() < 0.15:
            return f'"{self.value}"'
        return str(self.value)


def function(name: str, description: str, properties: dict, required: list[str]) -> dict:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def spelled(random, words: list[str]) -> str:
    style = random.random()
    if style < 0.75:
        return "_".join(words)
    if style < 0.9:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "-".join(words)


# How a value is told; the held-out sets have ways of their own.
CLAUSES = ["{k} {v}", "{k} {v}", "{k} = {v}", "{k}: {v}", "{k} is {v}", "{k}={v}", "<the |>{k} <should be|must be|being|equal to> {v}",
           "<a |>{k} of {v}", "{v} <for|is|=> <the |>{k}", "{v} ({k})", "<use |take |put |>{v} <for|in> the {k}",
           "{k} to {v}", "<set |>{k} at {v}", "{k} <set|put|fixed|turned|changed|brought|made|kept> <at|on|as|equal to|to be|into> {v}",
           "{k} <put|fixed|turned|changed|brought|made|moved> to {v}", "set {k} to {v}", "{v} as <the|my|a|its> {k}", "{v} <being|counting as|used as|taken as> {k}",
           "{v} as {k} value", "{v}, that is the {k}", "the {k} {v}", "{k} - {v}", "{k}, {v}"]  # fmt: skip


class Tool:
    """A tool of a verb and a noun with one to four parameters."""

    def __init__(self, random, held: bool):
        self.verb = VERBS.draw(random, held and random.random() < 0.5)
        self.noun = NOUNS.draw(random, held)
        self.parameters = {}
        for _ in range(random.choice((1, 1, 2, 2, 2, 3, 3, 4))):
            parameter = Parameter(random, held)
            self.parameters.setdefault(parameter.name, parameter)
        self.parameters = list(self.parameters.values())
        self.name = spelled(random, [self.verb, self.noun])
        needed = max(1, len(self.parameters) - (random.random() < 0.35))
        self.required = [p.name for p in self.parameters[:needed]]
        description = random.choice(("{V} a {n}.", "{V} the {n}.", "{V} {n}", "Tool to {v} a {n}.", ""))
        description = description.format(V=self.verb.capitalize(), v=self.verb, n=self.noun)
        self.spec = function(self.name, description, {p.name: p.schema for p in self.parameters}, self.required)

    def request(self, random, held: bool) -> tuple[str, dict]:
        """The user's words and the arguments; optional parameters may stay unsaid."""
        said = [p for p in self.parameters if p.name in self.required or random.random() < 0.5]
        told = random.sample(said, len(said)) if random.random() < 0.4 else said
        clause = varied(random, random.choice(CLAUSES))
        if held:
            clause = random.choice(("{k} {v}", "{k} set to {v}", "{v} as {k}"))
        parts = [clause.format(k=p.name, v=p.words(random)) for p in told]
        if len(told) == 1 and told[0].loose and random.random() < 0.35:
            parts = [told[0].words(random)]
        frame = phrase(random, held, [
            "<{v}|please {v}|can you {v}|could you {v}|will you {v}|I want you to {v}|I would like to {v}|let us {v}|now {v}|help me {v}|it would be good to {v}|go and {v}|be kind and {v}> <the|a|this|that|my|one> {n}<, | with |: |. | - |; ><|use |and take |for it ><{p}.|{p}|{p}!|{p}, please.>",
            "<with|use|using|take> {p}<,|:> {v} <the|a|my> {n}.", "{n}: {v} it<, | with |: >{p}.", "<{V}|{V} one> {n} <using|by|having|under> {p}.",
            "{p}<. |: |, so ><{v}|please {v}> <the|a|my> {n}.", "<the|my> {n} <should|must|has to> be <done|handled>, so {v} it: {p}.",
            "<now|today|this> is the time to {v} the {n}<: |, with | with >{p}.", "It is <now time|high time|my wish|good> to {v} <the|a> {n}<: |, with | with >{p}.",
            "<the time has come|we have|I have|you ought|remember> to {v} <the|a> {n}<: |, with | with >{p}.",
            "{V} the {n} with {p}.", "Please {v} a {n}: {p}.", "{V} {n}, {p}", "I want to {v} the {n} with {p}.",
            "Can you {v} a {n} with {p}?", "{v} {n} {p}", "{V} a {n} ({p}).", "{V} the {n}. {p}.",
            "Use {p} and {v} the {n}.", "I need a {n}: {v} it with {p}.", "{V} the {n} for {p}",
            HELD, "Could you please {v} the {n} with {p}?", "Be so kind and {v} a {n}, with {p}.",
            "It is time to {v} the {n}: {p}.",
        ])  # fmt: skip
        text = frame.format(V=self.verb.capitalize(), v=self.verb, n=self.noun, p=joined(parts))
        return text, {p.name: p.value for p in self.parameters if p in said}


def typed(kind: str, **more) -> dict:
    return {"type": kind} | more


# Tools as people know them, with the ways they are asked for.
def known_tool(random, held: bool) -> tuple[dict, str, dict]:
    place, name, thing = town(random, held), FIRST_NAMES.draw(random, held), THINGS.draw(random, held)
    day, whole, hour = random.choice(DAYS.train), integer(random, 3), random.randint(1, 23)
    what = random.randrange(10)
    if what == 0:
        days = random.randint(1, 14)
        asked = ["What is the weather in {a}?", "How is the weather in {a}?", "Weather in {a}", "Will it rain in {a}?",
                 "Tell me the weather in {a}.", "<which|what kind of> weather <is it|is there|do they have> in {a}?",
                 "<I want|give me|show me> <the |>{a}<'s|> weather.", "Is it <warm|cold|dry|wet> in {a}?", "{a} weather", HELD,
                 "What weather has {a}?"]  # fmt: skip
        key = random.choice(("city", "place", "location"))
        properties, arguments = {key: typed("string")}, {key: place}
        if random.random() < 0.4:
            asked = ["What is the weather in {a} for the next {b} days?", "Weather in {a} for {b} days",
                     "Give me the weather of {b} days in {a}.", HELD, "I want {b} days of weather for {a}."]  # fmt: skip
            properties["days"] = typed("integer")
            arguments["days"] = days
        tool = function(random.choice(("get_weather", "weather")), "Weather of a place.", properties, [key])
        text = phrase(random, held, asked).format(a=place, b=days)
    elif what == 1:
        tool = function("set_timer", "Set a timer.", {"minutes": typed("integer")}, ["minutes"])
        asked = ["Set a timer for {a} minutes.", "Timer {a} minutes", "Wake me in {a} minutes.",
                 "Start a timer of {a} minutes.", "<I want|make|put on|give me> a <timer of {a} minutes|{a} minute timer>.",
                 "<ring|call me|tell me> <in|after> {a} minutes.", "{a} minutes<, please|> on the timer", HELD, "I need a timer for {a} minutes."]  # fmt: skip
        text, arguments = phrase(random, held, asked).format(a=whole), {"minutes": whole}
    elif what == 2:
        words = random.choice(("I am late", "the key is under the stone", f"bring the {thing}", f"see you on {day}",
                               f"the {thing} is in {place}", f"come to {place}"))  # fmt: skip
        if not held and random.random() < 0.5:
            words = " ".join(any_word(random, False) for _ in range(random.randint(2, 6)))
        properties = {"to": typed("string"), "text": typed("string")}
        tool = function("send_message", "Send a message.", properties, ["to", "text"])
        asked = ["Tell {a} that {b}.", "Send {a} a message: {b}", "Write to {a}: {b}", 'Message {a} "{b}"',
                 "<write|text|say to|tell> {a} <this|the following>: {b}", "<a message|a note> <to|for> {a}: {b}",
                 "{a} should <know|hear|read> <this|that>: {b}", "Let {a} hear <that|it>: {b}", HELD,
                 "Let {a} know this: {b}"]  # fmt: skip
        text, arguments = phrase(random, held, asked).format(a=name, b=words), {"to": name, "text": words}
    elif what == 3:
        units = random.sample(("euro", "dollar", "pound", "yen", "franc"), 2)
        if not held and GENERAL and random.random() < 0.4:
            units = [general_word(random), general_word(random)]
        properties = {"amount": typed("number"), "from": typed("string"), "to": typed("string")}
        tool = function("convert", "Convert money.", properties, list(properties))
        value = decimal(random) if random.random() < 0.4 else integer(random, 4)
        asked = ["Convert {a} {b} to {c}.", "How many {c} are {a} {b}?", "{a} {b} in {c}", "Change {a} {b} into {c}.",
                 "<how much|what> <is|are|would be> {a} {b} <to|as|when changed to> {c}?", "{c} for {a} {b}", "From {b} to {c}: {a}",
                 HELD, "What is {a} {b} in {c}?"]  # fmt: skip
        text = phrase(random, held, asked).format(a=value, b=units[0], c=units[1])
        arguments = {"amount": value, "from": units[0], "to": units[1]}
    elif what == 4:
        query = f"{COLOURS.draw(random, held)} {thing}"
        tool = function(random.choice(("search", "web_search")), "Search.", {"query": typed("string")}, ["query"])
        asked = ["Search for {a}.", "Find {a}.", "Look for {a}.", "Search {a}", "<look|search> for <a |>{a}",
                 "<I want to|help me|try to|can you> <find|look for|search for> {a}<.|?>", "What can be found about {a}?", HELD, "Please look up {a}."]
        text, arguments = phrase(random, held, asked).format(a=query), {"query": query}
    elif what == 5:
        properties = {"title": typed("string"), "day": typed("string"), "hour": typed("integer")}
        tool = function("add_event", "Add an event.", properties, ["title", "day", "hour"])
        title = random.choice(("dinner", "lunch", "a walk", "a lesson", "a meeting")) + f" with {name}"
        if not held and random.random() < 0.4:
            title = " ".join(any_word(random, False) for _ in range(random.randint(1, 3)))
        asked = ["Add {a} on {b} at {c}.", "Put {a} on {b} at {c} into the calendar.", "{a} on {b} at {c}",
                 "<write|note|enter|plan|book> {a} <on|for> {b}<, | at >{c}.", "<I have|there is> {a} on {b} at {c}.",
                 "On {b} at {c} <there is|I have|plan> {a}.", HELD,
                 "Please note {a} for {b} at {c}."]  # fmt: skip
        text = phrase(random, held, asked).format(a=title, b=day, c=hour)
        arguments = {"title": title, "day": day, "hour": hour}
    elif what == 6:
        tool = function("get_time", "Time in a city.", {"city": typed("string")}, ["city"])
        asked = ["What time is it in {a}?", "Time in {a}", "What is the time in {a}?", "Tell me the time in {a}.",
                 "<what|which> <hour|time> <is it|do they have> <now |>in {a}?", "{a} time", "<the |>clock in {a}?", "Is it late in {a}?", HELD,
                 "How late is it in {a}?"]  # fmt: skip
        text, arguments = phrase(random, held, asked).format(a=place), {"city": place}
    elif what == 7:
        room = random.choice(("kitchen", "hall", "garden", "bedroom", "cellar", "study", any_word(random, held)))
        on = random.random() < 0.5
        properties = {"room": typed("string"), "on": typed("boolean")}
        tool = function("switch_light", "Light on or off.", properties, ["room", "on"])
        asked = ["Turn {b} the light in the {a}.", "Light {b} in the {a}", "Switch the {a} light {b}.",
                 "<I want|make|put|have> the <{a} light|light in the {a}> {b}.", "{a} light {b}", "Light {b}: {a}", HELD,
                 "The light in the {a} should be {b}."]  # fmt: skip
        text = phrase(random, held, asked).format(a=room, b="on" if on else "off")
        arguments = {"room": room, "on": on}
    elif what == 8:
        properties = {"item": typed("string"), "quantity": typed("integer")}
        tool = function("order_item", "Order something.", properties, list(properties))
        asked = ["Order {b} of {a}.", "I want {b} {a}.", "Get me {b} {a}.", "Buy {b} {a}",
                 "<I need|bring|send me|please get> {b} <{a}|of {a}>.", "{b} {a}, please", "{a}: {b}", HELD, "We need {b} {a}."]
        item = FOODS.draw(random, held)
        text, arguments = phrase(random, held, asked).format(a=item, b=whole), {"item": item, "quantity": whole}
    else:
        a, b = integer(random, 4), integer(random, 4)
        sign = random.choice("+-*/")
        tool = function("calculate", "Calculate.", {"expression": typed("string")}, ["expression"])
        asked = ["Calculate {a}.", "What is {a}?", "Use the tool for {a}.", "{a}", "<compute|work out|evaluate|how much is|find> {a}<.|?>", HELD, "Please calculate {a} for me."]
        expression = f"{a} {sign} {b}"
        text, arguments = phrase(random, held, asked).format(a=expression), {"expression": expression}
    return tool, text, arguments


def call(name: str, arguments: dict) -> dict:
    return {"function": {"name": name, "arguments": arguments}}


RESULT_KEYS = Lexicon(
    "temperature sky wind price total status count owner place time date colour size weight title answer score stock"
)


def result(random, held: bool) -> tuple[str, str]:
    """A tool's result and what is said about it."""
    what = random.random()
    if what < 0.15:
        reason = random.choice(("not found", "no access", "no answer", "too late", "out of stock", "wrong name"))
        form = random.choice(("error: {r}", '{{"error": "{r}"}}', "Error: {r}."))
        return form.format(r=reason), f"The tool failed: {reason}."
    if what < 0.3:
        return random.choice(("ok", "OK", '{"status": "ok"}', "done", '{"ok": true}', "success")), "Done."
    drawn = [RESULT_KEYS.draw(random, held and i == 0) for i in range(random.choice((1, 1, 2, 3)))]
    keys = list(dict.fromkeys(drawn))  # in the order drawn: a set's would change from run to run
    values = {}
    for key in keys:
        kind = random.random()
        values[key] = integer(random, 4) if kind < 0.4 else decimal(random) if kind < 0.55 else any_word(random, held)
    answer = joined([f"the {key} is {value}" for key, value in values.items()]) + "."
    text = json.dumps(values) if random.random() < 0.7 else ", ".join(f"{k}: {v}" for k, v in values.items())
    return text, answer[0].upper() + answer[1:]


def distractors(random, held: bool, count: int, name: str) -> list[dict]:
    tools = []
    while len(tools) < count:
        tool = known_tool(random, held)[0] if random.random() < 0.3 else Tool(random, held).spec
        if tool["function"]["name"] not in {name} | {t["function"]["name"] for t in tools}:
            tools.append(tool)
    return tools


def tool_call(random, held: bool, with_result: bool | None = None) -> Task:
    """One call (sometimes two of the same tool); in training often with the result and its answer behind it."""
    if random.random() < 0.4:
        spec, text, arguments = known_tool(random, held)
    else:
        tool = Tool(random, held)
        spec = tool.spec
        text, arguments = tool.request(random, held)
    name = spec["function"]["name"]
    calls = [call(name, arguments)]
    if not held and name.endswith("weather") and len(arguments) == 1 and random.random() < 0.3:
        key, first = next(iter(arguments.items()))
        second = town(random, held)
        calls.append(call(name, {key: second}))
        text = f"What is the weather in {first} and in {second}?"
    tools = distractors(random, held, random.choice((0, 0, 1, 1, 2, 3)), name) + [spec]
    random.shuffle(tools)
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "", "thought": f"I call {name}.", "tool_calls": calls},
    ]
    if with_result if with_result is not None else random.random() < 0.4:
        told = [result(random, held) for _ in calls]
        if len(told) == 1:
            messages.append({"role": "tool", "content": told[0][0]})
            messages.append({"role": "assistant", "content": told[0][1], "thought": "I tell the result."})
    return Task("tool_result" if with_result else "tool_call", messages, tools)


def no_tool(random, held: bool) -> Task:
    """Tools are on offer and none of them helps."""
    what = random.random()
    if what < (0.45 if held else 0.6):
        task = talk(random, held)
        if "no tool" in task.messages[1]["content"] or "do not know" in task.messages[1]["content"]:
            task = Task("talk", exchange(*lookup(random, held), "A fact."))
    elif what < (0.75 if held else 0.8):
        task = random.choice((addition, subtraction))(random, held)
    else:
        task = passage(random, held)
    tools = distractors(random, held, random.choice((1, 1, 2, 3)), "calculate")
    for message in task.messages:
        if message["role"] == "assistant" and not task.thinks:
            message["thought"] = "No tool is needed."
    return Task("no_tool", task.messages, tools, task.thinks, task.developer)
