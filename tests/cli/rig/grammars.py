"""Random grammars, and a recogniser to hold gyre to: Earley's algorithm as it is in books. Not a test itself.

An expression is ("text", s), ("class", chars), ("seq", [..]), ("alt", [..]), ("repeat", e, least, most or None) or
("rule", name); a grammar is {name: expression}. As GBNF, as Lark and as plain productions it has one language."""


def random_expression(rng, names, depth=0):
    kinds = ["text", "class"] if depth > 2 else ["text", "class", "seq", "seq", "alt", "alt", "repeat", "rule", "rule"]
    kind = rng.choice(kinds)
    if kind == "text":
        return ("text", "".join(rng.choice("ab") for _ in range(rng.randint(1, 2))))
    if kind == "class":
        return ("class", "".join(sorted(rng.sample("abc", rng.randint(1, 2)))))
    if kind == "rule" and names:
        return ("rule", rng.choice(names))
    if kind == "repeat":
        least = rng.choice([0, 0, 1, 2])
        return ("repeat", random_expression(rng, names, depth + 1), least, rng.choice([None, least + 1, least + 2]))
    parts = [random_expression(rng, names, depth + 1) for _ in range(rng.randint(2, 3))]
    return ("seq", parts) if kind == "seq" else ("alt", parts)


def random_grammar(rng):
    names = ["root", "x", "y", "z"][:rng.randint(1, 4)]
    return {name: random_expression(rng, names) for name in names}


def written(e, lark):
    """An expression in GBNF, or in Lark."""
    kind = e[0]
    if kind == "text":
        return '"%s"' % e[1]
    if kind == "class":
        return "/[%s]/" % e[1] if lark else "[%s]" % e[1]
    if kind == "rule":
        return "start" if lark and e[1] == "root" else e[1]
    if kind == "repeat":
        least, most, inner = e[2], e[3], "(%s)" % written(e[1], lark)
        if most is None:
            return inner + "*+"[least] if least < 2 else "(%s)" % " ".join([inner] * least + [inner + "*"])
        return "(%s~%d..%d)" % (inner, least, most) if lark else "%s{%d,%d}" % (inner, least, most)
    return "(" + (" " if kind == "seq" else " | ").join(written(p, lark) for p in e[1]) + ")"


def as_gbnf(grammar):
    return "".join("%s ::= %s\n" % (name, written(e, False)) for name, e in grammar.items())


def as_lark(grammar):
    return "".join("%s: %s\n" % ("start" if n == "root" else n, written(e, True)) for n, e in grammar.items())


def productions(grammar):
    """{name: [right sides]}; a symbol is a name, or a set of characters."""
    rules = {}

    def fresh(sides):
        name = "#%d" % len(rules)
        rules[name] = sides
        return name

    def symbols(e):
        kind = e[0]
        if kind == "text":
            return [frozenset(c) for c in e[1]]
        if kind == "class":
            return [frozenset(e[1])]
        if kind == "rule":
            return [e[1]]
        if kind == "seq":
            return [s for p in e[1] for s in symbols(p)]
        if kind == "alt":
            name = fresh([])
            rules[name] = [symbols(p) for p in e[1]]
            return [name]
        body = fresh([])
        rules[body] = [symbols(e[1])]
        if e[3] is None:
            more = fresh([])
            rules[more] = [[], [body, more]]
            return [body] * e[2] + [more]
        maybe = fresh([[], [body]])
        return [body] * e[2] + [maybe] * (e[3] - e[2])

    for name, e in grammar.items():
        rules[name] = [symbols(e)]
    return rules


def without_hopeless(rules):
    """Only right sides that some text satisfies."""
    possible, size = set(), -1
    while size != len(possible):
        size = len(possible)
        possible |= {n for n, sides in rules.items()
                     if any(all(not isinstance(s, str) or s in possible for s in side) for side in sides)}
    return {n: [s for s in rules[n] if all(not isinstance(x, str) or x in possible for x in s)] for n in possible}


def recognise(rules, text):
    """(whole, prefix) of a text, by Earley; rules without hopeless ones. None where the grammar has no text."""
    if "root" not in rules:
        return None
    nullable, size = set(), -1
    while size != len(nullable):
        size = len(nullable)
        nullable |= {n for n, sides in rules.items() if any(all(s in nullable for s in side) for side in sides)}
    sets = []
    items = {("root", side, 0, 0) for side in range(len(rules["root"]))}
    for i in range(len(text) + 1):
        here, todo = set(), list(items)
        while todo:
            item = todo.pop()
            if item in here:
                continue
            here.add(item)
            name, side, dot, origin = item
            if dot == len(rules[name][side]):
                waiting = here if origin == i else sets[origin]
                todo += [(n, s, d + 1, o) for n, s, d, o in waiting if d < len(rules[n][s]) and rules[n][s][d] == name]
                continue
            symbol = rules[name][side][dot]
            if isinstance(symbol, str):
                todo += [(symbol, s, 0, i) for s in range(len(rules[symbol]))]
                if symbol in nullable:
                    todo.append((name, side, dot + 1, origin))
        sets.append(here)
        whole = any(n == "root" and d == len(rules[n][s]) and o == 0 for n, s, d, o in here)
        if i == len(text):
            return whole, bool(here)
        items = {(n, s, d + 1, o) for n, s, d, o in here
                 if d < len(rules[n][s]) and not isinstance(rules[n][s][d], str) and text[i] in rules[n][s][d]}


def random_regex(rng, depth=0):
    kind = rng.randint(0, 9 if depth < 3 else 2)
    if kind <= 1:
        return rng.choice(["a", "b", "ab", "é", "c\\.", "x{", "\\x41", "-"])
    if kind == 2:
        return rng.choice([".", "[ab]", "[^a]", "[a-c-]", "\\d", "\\w", "\\s", "\\S", "[^\\W_]", "[\\]a]", "[é-ü]",
                           "\\D"])
    inner = random_regex(rng, depth + 1)
    if kind <= 5:
        return inner + random_regex(rng, depth + 1)
    if kind == 6:
        return "(%s|%s)" % (inner, random_regex(rng, depth + 1))
    if kind == 7:
        return "(?:%s)%s" % (inner, rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??"]))
    if kind == 8:
        return rng.choice(["(?i:%s)", "(?P<n%d>%%s)" % rng.randint(0, 10**9), "(?s:%s)", "(?:%s|)"]) % inner
    return rng.choice(["(?=%s)", "(?!%s)"]) % inner + random_regex(rng, depth + 1)
