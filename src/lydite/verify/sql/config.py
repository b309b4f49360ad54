"""What a recipe says about queries."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lydite.verify.answer import ThinkingRule
from lydite.verify.base_config import RewardConfig


class SqlConfig(RewardConfig):
    """1 if the query gives what the reference query gives, on its database and on variants of it
    that tell queries next to the reference apart, else 0.

    The problem's columns: `schema` (statements) and `rows` (lists by table), or `database` (a file,
    or a folder of them).
    """

    kind: Literal["sql"] = Field(default="sql", description="Agreement of SQL queries.")
    engine: Literal["sqlite", "duckdb"] = Field(
        default="sqlite", description="What runs the queries."
    )
    databases: str | None = Field(
        default=None,
        description="Folder that the paths in the column `database` start from; where the command "
        "runs by default.",
    )
    answer: Literal["auto", "block", "tag", "text"] = Field(
        default="auto",
        description="Where the query stands: `block` (the last ```sql block), `tag` "
        "(<answer>…</answer> or <sql>…</sql>), `text` (all that follows the thinking), or `auto`: "
        "the first of tag and block that occurs, else all of it.",
    )
    thinking: ThinkingRule = Field(
        default="auto",
        description="`required`: a completion that never closes </think> has no query. `auto`: "
        "only one that opens <think> itself and never closes it has none.",
    )
    columns: Literal["ordered", "any"] = Field(
        default="ordered", description="Whether columns must come in the order of the reference."
    )
    tolerance: float = Field(
        default=1e-9,
        ge=0,
        lt=1,
        description="Relative difference that two numbers may have when one is a fraction.",
    )
    nulls: Literal["declared", "observed"] = Field(
        default="observed",
        description="Where variants put NULLs: into columns that hold one already or that the "
        "reference asks about (IS NULL, COALESCE); or, `declared`, into any that is not declared "
        "NOT NULL.",
    )
    variants: int = Field(
        default=40,
        ge=0,
        le=200,
        description="Databases that are made of the given one at most; 0 compares on the given "
        "ones alone.",
    )
    build_seconds: float = Field(
        default=10.0, gt=0, description="Seconds that making a problem's variants may take."
    )
    max_rows: int = Field(default=10_000, ge=1, description="Rows that a query may give.")
    max_chars: int = Field(
        default=10_000, ge=1, description="A longer query is wrong without being read."
    )
