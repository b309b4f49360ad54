"""Problems for auditing a reward that comes without any, two or three for each kind of answer."""

from __future__ import annotations

from collections.abc import Sequence

from lydite.types import Message, Problem
from lydite.verify.audit.attack import Example, Kind

_PLACE = r" Put the final answer in \boxed{}."

# kind, question, reference, right answers, wrong answers
_ANSWERS: Sequence[tuple[Kind, str, str, Sequence[str], Sequence[str]]] = (
    ("integer", "A shop sells 17 red and 25 blue pens. How many is that?", "42", ["42.00"], ["8"]),
    ("integer", "A train has 12 cars with 84 seats each. How many seats?", "1008", [], ["1080"]),
    ("integer", "At noon it was 5 degrees, then it fell by 12. What is it now?", "-7", [], ["17"]),
    ("integer", "How many of the 9 boxes hold none of the 9 balls that lie in them all?", "0",
     ["0.0"], ["9"]),
    ("rational", "Of 8 slices 6 are eaten. What share is that?", r"\frac{3}{4}", [r"75\%", ".75"],
     [r"\frac{6}{4}", "75"]),
    ("rational", "What is 1 divided by 6?", "1/6", [r"0.1\overline{6}"], ["0.16", "0.17", "0.2"]),
    ("decimal", "A book costs 12.5 dollars. What do 3 of them cost?", "37.5", [r"\frac{75}{2}"],
     ["37", "38", "3.75"]),
    ("quantity", "A car drives 120 km in 2 hours. How fast is it?", "60 km/h",
     [r"60 \text{ kilometers per hour}"], ["60 m/s", "60 km", "60 mph"]),
    ("quantity", "A rope of 7 meters loses 2 meters. How long is it now?", "5 m",
     [r"5 \text{ meters}", "500 cm"], ["5 km", r"5 \text{ m}^2", "5 s"]),
    ("expression", "What is the square root of 12?", r"2\sqrt{3}",
     [r"\sqrt{12}", "2√3", r"\frac{6}{\sqrt{3}}"], ["2", r"\sqrt{3}", "3.46", r"2\sqrt[3]{3}"]),
    ("expression", "Expand the product of x+2 and x-5.", "x^2-3x-10",
     ["(x+2)(x-5)", "x^{2} - 3x - 10", "-10-3x+x^2"], ["x^2+3x-10", "x^2-10", "x^2-3x-10=0"]),
    ("expression", "What is the area of a circle of radius 3?", r"9\pi", ["9π", r"\pi\cdot 9"],
     ["9", "28.27", r"3\pi", r"9\pi^2"]),
    ("equation", "Which line has slope 2 and crosses the y axis at 3?", "y=2x+3",
     ["y = 3+2x", "2x-y+3=0"], ["y=3x+2", "y=2x-3", "2x+3=0", "y>2x+3"]),
    ("tuple", "Where do the lines y=x+1 and y=7-x meet?", "(3,4)",
     ["x=3, y=4", r"\left(3,4\right)"], ["(4,3)", "[3,4]", "3", "(3,4,0)"]),
    ("set", "Which numbers solve x^2-7x+10=0?", r"\{2,5\}", ["5, 2", r"x=2 \text{ or } x=5"],
     ["2", "5", "(2,5]", r"\{2,5,7\}", "25"]),
    ("interval", "For which x is 0 at most x, and x less than 4?", "[0,4)",
     [r"0 \le x < 4", "4 > x \\ge 0"], ["[0,4]", "(0,4)", "(0,4]", "x<4", r"0 \le x \le 4"]),
    ("matrix", "Write the matrix with rows 1 2 and 3 4.",
     r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
     [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"],
     [r"\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}", "1, 2, 3, 4"]),
    ("choice", "Which is a prime? (A) 9 (B) 11 (C) 15 (D) 21", "B", [r"\text{B}"], ["C"]),
    ("choice", "Which is even? (A) 3 (B) 5 (C) 8 (D) 11", "C", ["(C)"], ["B", "AC"]),
    ("text", "Is 91 a prime number? Answer yes or no.", "no", ["No"], ["yes", "know"]),
    ("text", "Which day comes two days after Monday?", "Wednesday", ["wednesday"], ["Thursday"]),
)  # fmt: skip

_PROGRAMS: Sequence[tuple[str, str, dict[str, object], Sequence[str], Sequence[str]]] = (
    (
        "Write a function `square(x)` that returns the square of a whole number.",
        "def square(x):\n    return x * x\n",
        {"entry_point": "square",
         "cases": [{"args": [n], "expected": n * n} for n in (-3, 0, 2, 7, 11)]},
        ["def square(x):\n    return x ** 2\n", "square = lambda x: abs(x) * abs(x)\n"],
        ["def square(x):\n    return x + x\n", "def square(x):\n    return str(x * x)\n",
         "def square(x):\n    return {-3: 9, 2: 4}.get(x)\n"],
    ),
    (
        "Write a function `widest(words)` that returns the longest word, the first of several.",
        "def widest(words):\n    return max(words, key=len)\n",
        {"entry_point": "widest",
         "test_code": "def check(candidate):\n    assert candidate(['a', 'bcd', 'ef']) == 'bcd'\n"
         "    assert candidate(['one', 'two']) == 'one'\n"
         "    assert candidate(['x']) == 'x'\n"},
        ["def widest(words):\n    return sorted(words, key=len, reverse=True)[0]\n"],
        ["def widest(words):\n    return max(words)\n",
         "def widest(words):\n    return words[1]\n"],
    ),
    (
        "Read two whole numbers, one a line, and print their sum.",
        "print(int(input()) + int(input()))\n",
        {"tests": [{"input": "2\n3\n", "output": "5\n"}, {"input": "-4\n4\n", "output": "0\n"},
                   {"input": "40\n2\n", "output": "42\n"}]},
        ["import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"],
        ["print(5)\n", "print(int(input()) * int(input()))\n", "print(input() + input())\n",
         "print(5)\nprint(0)\nprint(42)\n"],
    ),
)  # fmt: skip

_SCHEMA = (
    "create table shelf(id integer primary key, place text not null)",
    "create table book(id integer primary key, title text not null, shelf integer "
    "references shelf(id), pages integer not null)",
)
_ROWS = {
    "shelf": [[1, "north"], [2, "south"], [3, "east"]],
    "book": [[1, "Ash", 1, 120], [2, "Birch", 1, 300], [3, "Cedar", 2, 300], [4, "Dune", None, 90],
             [5, "Elm", 2, 210]],
}  # fmt: skip
_QUERIES: Sequence[tuple[str, str, Sequence[str], Sequence[str]]] = (
    ("How many books have at least 200 pages?", "select count(*) from book where pages >= 200",
     ["select count(id) from book where not pages < 200",
      "SELECT count(case when pages >= 200 then 1 end) "
      "FROM book"],
     ["select 3", "select count(*) from book where pages > 210",
      "select count(*) from book where pages >= 210", "select pages from book where pages >= 200"]),
    ("Which titles stand on the north shelf?",
     "select title from book join shelf on shelf.id = book.shelf where place = 'north'",
     ["select title from book where shelf in (select id from shelf where place = 'north')"],
     ["select title from book where shelf = 1", "select title from book",
      "select title from book left join shelf on shelf.id = book.shelf",
      "select 'Ash' union select 'Birch'"]),
    ("List the number of pages of every book, longest first.",
     "select pages from book order by pages desc",
     ["select pages from book order by -pages"],
     ["select pages from book", "select distinct pages from book order by pages desc",
      "select pages from book order by pages"]),
)  # fmt: skip


def builtin(kinds: Sequence[Kind] | None = None) -> list[Example]:
    """The built-in problems, of some kinds or all but programs and queries."""
    wanted = kinds or tuple(kind for kind, *_ in _ANSWERS)
    found = [
        Example(
            _problem(f"{kind}-{number}", question + _PLACE, gold),
            tuple(right),
            tuple(wrong),
            binding=False,
        )
        for number, (kind, question, gold, right, wrong) in enumerate(_ANSWERS)
        if kind in wanted
    ]
    if "code" in wanted:
        found += [
            Example(_problem(f"code-{n}", question, gold, fields), tuple(right), tuple(wrong))
            for n, (question, gold, fields, right, wrong) in enumerate(_PROGRAMS)
        ]
    if "sql" in wanted:
        source: dict[str, object] = {"schema": list(_SCHEMA), "rows": _ROWS}
        found += [
            Example(_problem(f"sql-{n}", question, gold, source), tuple(right), tuple(wrong))
            for n, (question, gold, right, wrong) in enumerate(_QUERIES)
        ]
    return found


def _problem(
    name: str, question: str, gold: str, fields: dict[str, object] | None = None
) -> Problem:
    """The reference also stands in the columns that reward functions ask for."""
    columns = dict.fromkeys(("solution", "ground_truth", "target", "label", "gold"), gold)
    return Problem(
        name, question, (Message("user", question),), gold, fields={**columns, **(fields or {})}
    )
