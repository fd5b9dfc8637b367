"""Texts that exercise a tokenizer: many scripts, code, emoji, spaces, controls, long words, and seeded random mixtures."""

import random

SENTENCES = {
    "english": "All human beings are born free and equal in dignity and rights; they'll've DON'T I'M we'Re it'S he'd.",
    "german": "Die Straße ist groß, die Häuser sind schön – und „morgen“ fahren wir über die Brücke nach Köln.",
    "french": "L'été, nous mangeons des crêpes à l'œuf près du fleuve ; ça coûte 12,50 € (où ça ?) – n'est-ce pas ?",
    "spanish": "¿Dónde está el niño? ¡Mañana comeremos piñas, señor! Cuesta 1.234,56 pesos.",
    "portuguese": "Não há razão para preocupação: amanhã iremos à praia com o avô e a avó.",
    "polish": "Zażółć gęślą jaźń – pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "czech": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "hungarian": "Árvíztűrő tükörfúrógép, kétszázötven forintért.",
    "turkish": "İstanbul'da ılık bir gün; ağaçların gölgesinde çay içtik. IĞDIR iğdır.",
    "finnish": "Yöllä näimme revontulia järven yllä, ja aamulla satoi lunta.",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю. ВСЕ люди рождаются свободными.",
    "ukrainian": "Усі люди народжуються вільними і рівними у своїй гідності та правах, з’їзд.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι. ΑΒΓ ΔΕΖ ΣΊΣΥΦΟΣ.",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "georgian": "ყველა ადამიანი იბადება თავისუფალი. ᲧᲕᲔᲚᲐ",
    "hebrew": "כל בני האדם נולדו בני חורין. שָׁלוֹם עֲלֵיכֶם",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. السَّلَامُ عَلَيْكُمْ ١٢٣٤٥",
    "persian": "همهٔ افراد بشر آزاد به دنیا می‌آیند. ۱۲۳۴۵۶",
    "urdu": "تمام انسان آزاد پیدا ہوئے ہیں۔",
    "hindi": "सभी मनुष्य स्वतंत्र पैदा होते हैं। क्षत्रिय ज्ञान १२३४",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে জন্মগ্রহণ করে। ১২৩",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "telugu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులు.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน ๑๒๓",
    "khmer": "មនុស្សទាំងអស់កើតមកមានសេរីភាព",
    "burmese": "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသည်။",
    "tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་རང་དབང་",
    "amharic": "የሰው ልጅ ሁሉ ሲወለድ ነጻ ነው። ፩፪፫",
    "chinese": "人人生而自由,在尊严和权利上一律平等。今天天气很好,我们去公园散步吧!价格是三千五百元(约500美元)。",
    "traditional": "人人生而自由,在尊嚴和權利上一律平等。這個網站的內容非常豐富。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナもテストする。",
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 안녕하세요?",
    "cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ꮒꭶꮣ",
    "mongolian": "ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ\u180e ᠮᠡᠨᠳᠡᠯᠡᠬᠦ",
    "titlecase": "ǅungla ǈubav ǋegoš ᾈΑ ǅǅ aǅb",
    "modifiers": "ʰʱʲ aʰB Aʰb ªº xᵃᵇC ʻokina Hawaiʻi ㍿ ⅷ Ⅷ ½x ²³ ①②③ 🄰",
}

CODE = [
    "def f(x: int) -> list[int]:\n    \"\"\"Doc.\"\"\"\n    return [i ** 2 for i in range(x) if i % 2 != 0]\n\n\n",
    "#include <vector>\r\n\r\nint main() {\r\n\tstd::vector<int> v{1, 2, 3};\r\n\treturn v[0] == 0x1F ? -1 : +1;\r\n}\r\n",
    "SELECT a.id, COUNT(*) AS n FROM t AS a LEFT JOIN u ON a.id=u.id WHERE a.x <> 'it''s' GROUP BY 1; -- note\n",
    "<div class=\"row\"><a href='https://example.org/a/b?c=d&e=%20#f'>x</a></div>\n<!-- // -->\n",
    "{\"k\": [1.5e-10, null, true, \"\\u00e9\\n\"], \"path\": \"C:\\\\dir\\\\file.txt\"}",
    "for (let i = 0; i < n; ++i) { /* ... */ console.log(`${i}//${arr[i]}`); } // end //\n\n/\n//\n",
    "camelCaseName HTTPServer XMLHttpRequest snake_case_name SCREAMING_CASE kebab-case iPhone eBay McDonald",
    "$ ls -la /usr/local/bin/*.sh | grep -E '^[a-z]+$' && echo \"done\" >> ~/log.txt 2>&1\n",
    "    four\n\tone tab\n\t\ttwo tabs\n  \t mixed\n        \n\n\n\n   trailing   \n",
    "a = b\n\n\n    c\r\n\r\n\r\n  d \n \n e\r\rf",
]

EMOJI = [
    "😀😃 👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣ #️⃣ 🫨🪿 👍🏿👍 ✊🏻a🧑‍🚀b",
    "text😀text 😀 text\n😀\n\n😀/😀/\n/ ♥♥♥ →→ ∑∏√ ₿₽ ™©®",
]

SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
NEAR_SPACES = "\u180e\u200b\u200c\u200d\u2060\ufeff\x1c\x1d\x1e\x1f\u00ad"

POOLS = [
    "abcxyzABCXYZ", "'’sStTrReEvVmMlLdDſ", "0123456789٣²Ⅷ½", " \t\n\r\xa0\u3000\u2028\x85\u180e\u200b",
    "!?.,/-_()[]{}<>|\\\"#@~", "ÀéßñÿŁſİǅʰẞ", "中文日本語한국어ひらがなไทย", "\u0301\u0308\u20dd\u094d\u0903\ufe0f",
    "😀👨\u200d👩\u200d👧🏽🇩🇪", "\x00\x01\x1b\x7f\ufeff\ufffd\ud7ff\ue000\U0010ffff", "кириллицаΕΛΛαβγעבריתالعربية",
]  # fmt: skip


def random_texts(count: int, seed: int, most: int = 24) -> list[str]:
    """Mixtures of few pools, and characters from anywhere."""
    source = random.Random(seed)
    texts = []
    for number in range(count):
        length = source.randint(1, most)
        if number % 4 == 3:
            limits = [source.choice([0x300, 0x3000, 0x20000, 0x110000]) for _ in range(length)]
            codes = [source.randrange(limit) for limit in limits]
            texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        else:
            pools = source.sample(POOLS, source.randint(1, 4))
            texts.append("".join(source.choice(source.choice(pools)) for _ in range(length)))
    return texts


def fixed_texts() -> list[str]:
    texts = ["", " ", "a", "\n"]
    texts += list(SENTENCES.values())
    texts += [sentence.upper() for sentence in SENTENCES.values()]
    texts += CODE + EMOJI
    texts += [f"a{space}b{space}{space}c{space}\n{space}d{space}" for space in SPACES + NEAR_SPACES]
    texts += [SPACES, SPACES * 3 + "x", NEAR_SPACES * 2, "".join(reversed(SPACES)) + "é"]
    texts += ["".join(chr(code) for code in range(0x00, 0x21)), "".join(chr(code) for code in range(0x7F, 0xA1))]
    texts += ["".join(f"{chr(code)}a{chr(code)}" for code in range(0x20))]
    for apostrophe in "'’":
        for ending in ("s", "t", "re", "ve", "m", "ll", "d", "ſ", "S", "T", "rE", "Ve", "M", "lL", "D", "x", "st", "l"):
            texts.append(f"we{apostrophe}{ending} WE{apostrophe}{ending}x {apostrophe}{ending} 中{apostrophe}{ending} 1{apostrophe}{ending}")
    texts += ["1" * count for count in range(1, 14)] + ["3.14159 1,234,567 0x7fff 1e-9 ٣٤٥٦٧ ²³¹⁴ ⅷⅸ 12ab34"]
    texts += ["e\u0301e\u0301 E\u0301E\u0301 \u0301\u0301ABC !\u0301!\u0301\u0301 1\u0301 \n\u0301 \u0301a"]
    texts += ["\r\n" * 5 + "x\r\ny\n\r\nz  \r\n  \r\n", "!\r\n/\n/ab", "x/\r\n/ /\n", " \r \n \r\n a"]
    texts += [" " * count + "x" for count in (2, 3, 7, 8, 9, 31, 64, 65, 200)] + [" " * 100, "\t" * 50, "\n" * 50]
    texts += ["a" * count for count in (2, 3, 31, 32, 33, 159, 160, 161, 5000)] + ["ab" * 3000, "=" * 500, "-" * 81 + "\n"]
    texts += ["Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 5]
    texts += ["人" * 400, "ๆ" * 300, "😀" * 200, "ACGT" * 700, "0123456789" * 60, "x\u0300" * 300, "中A" * 200]
    texts += ["".join(SENTENCES.values()).replace(" ", "")]
    return texts
