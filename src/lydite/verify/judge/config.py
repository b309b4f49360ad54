"""What a recipe says about a judge."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from lydite.config import Config
from lydite.remote import RequestsConfig, base_address
from lydite.verify.base_config import AnswerConfig


class JudgeRequests(RequestsConfig):
    """How a judge is asked."""

    max_tokens: int = Field(
        default=1024, ge=16, description="Tokens of a reply; a judge that thinks needs more."
    )
    structured: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Whether the reply is held to a JSON schema by `response_format`; `auto`: "
        "unless the server refuses that.",
    )
    body: dict[str, Any] = Field(
        default_factory=dict,
        description="Further fields of a request, such as `{top_p: 0.9}`; they go before ours, and "
        "null leaves one out, such as `{temperature: null}`.",
    )


class JudgeCanaries(Config):
    """Answers known to be wrong that a judge is given among the others."""

    share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="How many for each answer that is judged; every kind of them once at the "
        "start. 0 is none at all.",
    )
    rate: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="The run stops when the judge has accepted more than this share of the last "
        "100, counted as 20 at least.",
    )


class JudgeConfig(AnswerConfig):
    """1 if a language model finds the answer correct, 0 if it does not.

    It is sent the question, the reference and the candidate's answer, and nothing of the thinking
    unless it is shown the whole.
    """

    kind: Literal["judge"] = Field(
        default="judge", description="A language model behind an OpenAI-compatible server."
    )
    base_url: str = Field(
        description="Address of the server up to `/chat/completions`, such as "
        "`http://localhost:8000/v1`."
    )
    model: str = Field(min_length=1, description="Name of the model there.")
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable that holds the key of the server, if it wants one.",
    )
    rubric: str | None = Field(
        default=None,
        min_length=1,
        description="What makes an answer correct, in plain words. By default: the same value as "
        "the reference, however written. A column `rubric` states it for a row.",
    )
    reference: bool = Field(
        default=True,
        description="Whether the judge is shown the reference; a problem without one is then "
        "ungradable.",
    )
    shows: Literal["answer", "response", "whole"] = Field(
        default="answer",
        description="What the judge is shown: the final answer; all that follows the thinking; or "
        "the whole completion, as a judge of harm must be, whether or not its thinking is closed "
        "(raise `max_chars` for these).",
    )
    cache: str | None = Field(
        default="~/.cache/lydite/judge",
        description="Folder that keeps verdicts, so that the same answer is paid for once, also "
        "after a resume; null keeps none.",
    )
    requests: JudgeRequests = Field(
        default_factory=JudgeRequests, description="How the judge is asked."
    )
    canaries: JudgeCanaries = Field(
        default_factory=JudgeCanaries, description="Known wrong answers among the others."
    )

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return base_address(value, "/chat/completions")
