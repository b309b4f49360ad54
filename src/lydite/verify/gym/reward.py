"""The reward that reasoning-gym's own scorers give, each answer scored in a sandbox.

What the scorers let through is not taken on trust. Beside the answers, each gets some that are
wrong: junk, the first character of the reference, the reference taken back or left open. A scorer
that gives full marks to junk is followed only where the answer equals the reference, one that finds
the reference in whatever else is said only where nothing else is. No number that is not finite is
an answer.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from lydite.config import UserError
from lydite.types import Outcome, Problem, Unit
from lydite.verify.answer import read_answer
from lydite.verify.base_config import PoolLimits
from lydite.verify.final import same_writing
from lydite.verify.gym.config import GymConfig
from lydite.verify.sandbox import Ended, Program, Runner, Sandbox, SandboxError, SandboxLimits
from lydite.verify.sandbox.runtime import libraries_of
from lydite.verify.score import Score

PACKAGE = "reasoning-gym"
SCORED_TOGETHER = 16
CHECKED_TOGETHER = 32
CHECKING = SandboxLimits(
    wall_seconds=120.0, cpu_seconds=120, memory_mb=2048, file_mb=1, output_kb=4096
)
_LATE = {
    "timeout": "scoring it took too long",
    "cpu": "scoring it took too much processor time",
    "memory": "scoring it took too much memory",
}
_NOT_FINITE = re.compile(r"(?i)(?<![a-z])(?:nan|inf(?:inity)?)(?=[ij]?(?![a-z]))")
_NUMBER_LIKE = re.compile(r"(?i)[\d.,()\[\]+\-*eij]*")
Decided = tuple[Outcome, float | None, str]
_A_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_A_WORD = re.compile(r"\w+")
_HEDGES = frozenset({
    "or", "not", "no", "nor", "never", "neither", "either", "maybe", "perhaps", "possibly",
    "unless", "except", "isn", "wrong", "incorrect", "false",
})  # fmt: skip
_FILLERS = ("the", "answer", "final", "is", "so", "and", "therefore")
_START = "import lydite_gym\nlydite_gym.main()\n"


@functools.cache
def program() -> Program:
    """What the sandbox runs, and what of this machine it sees: the packages and their libraries.

    Raises:
        UserError: reasoning-gym is not installed.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("gym: needs the package reasoning-gym; pip install 'lydite[gym]'")
    places, binaries = _installed()
    libraries = libraries_of(binaries)
    source = resources.files("lydite.verify.gym").joinpath("scorer.py").read_text("utf-8")
    preload = (
        f"import sys, types\nmodule = sys.modules['lydite_gym'] = types.ModuleType('lydite_gym')\n"
        f"exec(compile({source!r}, 'scorer.py', 'exec', dont_inherit=True), module.__dict__)\n"
        f"module.load({places!r})\n"
    )
    return Program(
        ("python", "main.py"), {"main.py": _START.encode()}, (*places, *libraries), preload
    )


def _installed() -> tuple[list[str], list[str]]:
    """The folders that reasoning-gym and all it requires are in, and their binaries."""
    waiting, seen = [PACKAGE], set[str]()
    places: dict[str, None] = {}
    binaries: list[str] = []
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        places[str(Path(str(found.locate_file(""))).resolve())] = None
        files = [file for file in found.files or () if re.search(r"\.so(\.\d+)*$", str(file))]
        # The plotting library is not loaded; its binaries need none of theirs.
        if name not in ("matplotlib", "pillow", "fonttools", "kiwisolver", "contourpy"):
            binaries += [str(found.locate_file(file)) for file in files]
        for line in found.requires or ():
            if "extra ==" not in line and (wanted := re.match(r"[\w.-]+", line)):
                waiting.append(wanted[0])
    return list(places), binaries


class GymReward:
    """1.0 for full marks of the dataset's scorer, else 0.0; or its marks, with ``binary: false``.

    Problems are scored side by side, ``limits.workers`` at once, the answers to one in a process of
    their own; where that does not end well, each answer in its own. What a scorer raises over an
    answer is the answer's fault, and so is a limit that it passes (``timeout``); a problem whose
    scorer refuses the reference itself is ``ungradable``.
    """

    def __init__(self, config: GymConfig, name: str, limits: PoolLimits) -> None:
        """
        Raises:
            UserError: reasoning-gym is not installed, or no sandbox works on this machine.
        """
        self.name = name
        self.weight = config.weight
        self.decides = 2
        self.unit: Unit = "problem"  # the answers to one share a process
        self._config = config
        self._program = program()
        self._sandbox = Sandbox(slots=2 * limits.workers)
        self._workers = limits.workers
        self._threads = ThreadPoolExecutor(limits.workers, thread_name_prefix="gym")
        self._local = threading.local()

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order."""
        groups = [
            range(start, min(start + SCORED_TOGETHER, end))
            for first, end in _runs(problems)
            for start in range(first, end, SCORED_TOGETHER)
        ]
        found = self._threads.map(
            lambda group: self._score(problems[group[0]], [texts[n] for n in group]), groups
        )
        return [score for scores in found for score in scores]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Every problem names a dataset whose scorer takes the reference, if there is one."""
        faults: list[str | None] = []
        asked: dict[int, dict[str, Any]] = {}
        for index, problem in enumerate(problems):
            read = _problem(problem)
            faults.append(read if isinstance(read, str) else None)
            if not isinstance(read, str):
                asked[index] = read
        places = list(asked)
        share = max(1, math.ceil(len(places) / self._workers))
        shares = [places[n : n + share] for n in range(0, len(places), share)]
        for mine, found in zip(
            shares,
            self._threads.map(lambda mine: self._check([asked[n] for n in mine]), shares),
            strict=True,
        ):
            for place, fault in zip(mine, found, strict=True):
                faults[place] = fault
        return faults

    def warm(self) -> None:
        """Loads the library in as many sandboxes as will be used."""
        for _ in self._threads.map(lambda _: self._runner(), range(self._workers)):
            pass

    def close(self) -> None:
        """Ends every sandbox."""
        self._sandbox.close()  # first: what is under way ends with it
        self._threads.shutdown(cancel_futures=True)

    def _check(self, asked: list[dict[str, Any]]) -> list[str | None]:
        """Faults of problems, in one sandbox while none of them spoils it for the others."""
        faults: list[str | None] = []
        try:
            with self._sandbox.runner(self._program, CHECKING) as runner:
                for start in range(0, len(asked), CHECKED_TOGETHER):
                    chunk = asked[start : start + CHECKED_TOGETHER]
                    found = _exchange(runner, chunk)
                    if not isinstance(found, list):
                        break
                    faults += [_fault(each) for each in found]
                else:
                    return faults
        except SandboxError as error:
            return faults + [str(error)] * (len(asked) - len(faults))
        if len(asked) == 1:
            return [found if isinstance(found, str) else _ended(found)]
        left = asked[len(faults) :]
        chunk, rest = left[:CHECKED_TOGETHER], left[CHECKED_TOGETHER:]
        faults += [self._check([each])[0] for each in chunk]
        return faults + (self._check(rest) if rest else [])

    def _score(self, problem: Problem, texts: Sequence[str]) -> list[Score]:
        """The scores of several completions of one problem."""
        begun = time.perf_counter()
        config = self._config
        answers = [
            read_answer(
                text, config.answer, config.marker, config.thinking, config.max_chars, config.strict
            )
            for text in texts
        ]
        asked = _problem(problem)
        if isinstance(asked, str):
            return [Score(Outcome.UNGRADABLE, None, answer.text, asked) for answer in answers]
        decided = iter(self._decide(asked, [a.text for a in answers if a.text is not None]))
        seconds = (time.perf_counter() - begun) / len(texts)
        scores = []
        for answer in answers:
            if answer.text is None:
                scores.append(Score(Outcome.UNPARSEABLE, 0.0, detail=answer.reason))
            else:
                outcome, reward, detail = next(decided)
                scores.append(Score(outcome, reward, answer.text, detail, seconds))
        return scores

    def _decide(self, asked: dict[str, Any], answers: Sequence[str]) -> list[Decided]:
        """The outcome, reward and detail of each answer."""
        if not answers:
            return []
        try:
            found = self._ask({**asked, "submitted": list(answers)})
        except SandboxError as error:
            return [(Outcome.CRASHED, None, str(error))] * len(answers)
        if isinstance(found, Ended):
            if len(answers) > 1:  # one of them spoils it for the others
                return [self._decide(asked, [answer])[0] for answer in answers]
            late = found.how in _LATE
            return [(Outcome.TIMEOUT if late else Outcome.WRONG, 0.0, _ended(found))]
        if "unfit" in found:
            return [(Outcome.UNGRADABLE, None, str(found["unfit"]))] * len(answers)
        reference = asked["entry"]["answer"]
        return [
            self._decided(reference, answer, marks, found)
            for answer, marks in zip(answers, found["marks"], strict=True)
        ]

    def _decided(
        self,
        reference: str | None,
        answer: str,
        found: Mapping[str, Any],
        controls: Mapping[str, Any],
    ) -> Decided:
        if _not_finite(answer) and not (reference and _not_finite(reference)):
            return Outcome.WRONG, 0.0, "it is not a finite number"
        if "raised" in found:
            return Outcome.WRONG, 0.0, f"the scorer cannot read it: {found['raised']}"
        marks = float(found["score"])
        if not math.isfinite(marks):
            return Outcome.WRONG, 0.0, f"the scorer gives it {marks}"
        if controls["junk"] >= 1 and marks >= 1:
            if reference is None:
                return Outcome.UNGRADABLE, None, "the scorer gives full marks to any answer"
            if not same_writing(reference, answer):
                return Outcome.WRONG, 0.0, "the scorer takes it, as it takes junk"
        if controls["loose"] >= 1 and marks >= 1 and not says_no_more(answer, reference or ""):
            return Outcome.WRONG, 0.0, "it says more than the reference does"
        full = marks >= 1
        paid = float(full) if self._config.binary else min(1.0, max(0.0, marks))
        detail = "" if full or not marks else f"the scorer gives it {marks:.3g}"
        return Outcome.CORRECT if full else Outcome.WRONG, paid, detail

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any] | Ended:
        # Not loaded anew as code is: no answer runs that could read what was there before it.
        found = _exchange(self._runner(), [asked])
        if isinstance(found, list):
            return dict(found[0])
        self._drop()
        if isinstance(found, str):
            raise SandboxError(found)
        return found

    def _runner(self) -> Runner:
        """This thread's sandbox, the library loaded."""
        runner: Runner | None = getattr(self._local, "runner", None)
        if runner is None:
            runner = self._sandbox.runner(self._program, self._config.per_answer)
            self._local.runner = runner
        return runner

    def _drop(self) -> None:
        self._runner().close()
        self._local.runner = None


def _exchange(runner: Runner, problems: list[dict[str, Any]]) -> list[dict[str, Any]] | Ended | str:
    """What the sandbox found; how it ended instead, or what is wrong with its reply."""
    nonce = secrets.token_hex(16)
    ended = runner.run(json.dumps({"nonce": nonce, "problems": problems}).encode())
    if ended.how != "exited" or ended.code != 0:
        return ended
    try:
        said = json.loads(ended.stdout)
        found = said["found"] if said["nonce"] == nonce else None
    except (ValueError, LookupError, TypeError, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) != len(problems):
        return "the scorer's process gave no reply"
    return found


def _ended(ended: Ended) -> str:
    if ended.how in _LATE:
        return _LATE[ended.how]
    said = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    return f"the scorer's process ended ({ended.how}, {ended.code}){f': {said}' if said else ''}"


def _fault(found: Mapping[str, Any]) -> str | None:
    """Why a problem cannot be scored, as its check found."""
    return str(found["unfit"]) if "unfit" in found else None


def _problem(problem: Problem) -> dict[str, Any] | str:
    """What the scorer needs of a problem; or what is missing, in one line."""
    name = problem.fields.get("gym")
    if not isinstance(name, str) or not name:
        return "the problem has no column gym with the name of its reasoning-gym dataset"
    config = _mapping(problem.fields.get("gym_config"))
    metadata = _mapping(problem.fields.get("metadata"))
    if config is None or metadata is None:
        column = "gym_config" if config is None else "metadata"
        return f"its column {column} is no object"
    entry = {"question": problem.question, "answer": problem.reference, "metadata": metadata}
    return {"dataset": name, "config": config, "entry": entry, "submitted": []}


def _runs(problems: Sequence[Problem]) -> list[tuple[int, int]]:
    """Where the same problem stands several times in a row: first place, and one past the last."""
    starts = [n for n in range(len(problems)) if n == 0 or problems[n] is not problems[n - 1]]
    return list(pairwise([*starts, len(problems)]))


def _mapping(value: object) -> dict[str, Any] | None:
    """A column's object, which Parquet files may hold as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else None


def _not_finite(answer: str) -> bool:
    """Whether an answer is written as a number, and none that is finite."""
    without, count = _NOT_FINITE.subn("0", "".join(answer.split()))  # a scorer may close gaps too
    return count > 0 and _NUMBER_LIKE.fullmatch(without) is not None


def says_no_more(answer: str, reference: str) -> bool:
    """Whether an answer that holds the right one holds nothing beside it that could be another.

    Where the reference has numbers: no more of them, and no word that takes back or leaves open.
    Where it has none: no word that it has not, and none more often.
    """
    numbers = [len(_A_NUMBER.findall(text)) for text in (answer, reference)]
    words, known = (Counter(_A_WORD.findall(text.casefold())) for text in (answer, reference))
    if numbers[1]:
        return numbers[0] <= numbers[1] and not (_HEDGES & set(words)) - set(known)
    for word in _FILLERS:
        words.pop(word, None)
    return words <= known
