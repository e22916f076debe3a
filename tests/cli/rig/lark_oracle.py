"""Reads lines {"lark", "texts"} and says of each text whether Lark takes it. Runs where lark is installed."""
import json, sys

import lark

for line in sys.stdin:
    case = json.loads(line)
    try:
        parser = lark.Lark(case["lark"], parser="earley", lexer="dynamic_complete", ambiguity="explicit")
    except lark.exceptions.LarkError as e:
        print(json.dumps({"error": str(e)[:200]}))
        continue
    answers = []
    for text in case["texts"]:
        try:
            parser.parse(text)
            answers.append(True)
        except lark.exceptions.LarkError:
            answers.append(False)
    print(json.dumps(answers))
