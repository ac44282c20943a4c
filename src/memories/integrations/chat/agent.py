"""The chat's graph, and one turn through it. Importing this module takes 1.5 seconds, because it
loads LangGraph and the model's classes.

The steps of a turn are written to the session one by one, but the turn counts only when it is
complete. An interrupted turn is finished at the next start; a failed or stopped turn is dropped. So
a session never contains half a turn, which would make the model's API refuse every later request.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Annotated, Any, TypedDict

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    message_chunk_to_message,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_moonshot import ChatMoonshot
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition

from memories.context import fence
from memories.integrations.chat.memory import Fact, LongTerm, ShortTerm
from memories.integrations.chat.settings import Settings

RULES = """\
You are a helpful assistant in a terminal. Answer briefly and in plain text.
With the tool memory_upsert you can store one fact about the user in a turn. Store only what will \
still matter in other conversations: durable facts, preferences and constraints that the user \
stated. Skip passing requests, small talk, guesses, and what is already known. If you are not \
sure, store nothing."""
MAX_STEPS = 12
_REQUESTS = 3  # maximum number of requests to the model for one answer: the first, and two retries
Recall = Callable[[str], list[Fact]]
Show = Callable[[str], None]
_log = logging.getLogger("memories.chat")


class State(TypedDict):
    """A session's state: the conversation, and the current turn's id."""

    messages: Annotated[list[AnyMessage], add_messages]
    turn_id: str


class TurnFailed(Exception):
    """A turn failed and was dropped; the message contains the reason."""


class Agent:
    """Answers one user's messages in one session."""

    def __init__(
        self, settings: Settings, session: ShortTerm, memory: LongTerm, recall: Recall
    ) -> None:
        """Build the graph.

        Args:
            settings: The chat's settings.
            session: Stores the conversation.
            memory: Stores facts.
            recall: Returns the facts that the model is shown for a message.
        """
        self._session, self._memory, self._recall = session, memory, recall
        self._stop = threading.Event()
        self._stopped: tuple[threading.Thread, str | None] | None = None
        access: dict[str, Any] = {"api_key": settings.key.reveal(), "timeout": settings.seconds}
        if settings.base is not None:
            access["base_url"] = settings.base
        model = ChatMoonshot(
            model=settings.model, max_retries=_REQUESTS - 1, streaming=True, **access
        )
        upsert = self._tool()
        self._model = model.bind_tools([upsert])
        graph: Any = StateGraph(State)
        graph.add_node("model", self._call)
        graph.add_node("tools", ToolNode([upsert]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph: Any = graph.compile(checkpointer=session.saver)

    def answer(self, text: str, show: Show) -> None:
        """Answer a message.

        Args:
            text: The message.
            show: Receives the answer in pieces.

        Raises:
            TurnFailed: The turn failed and was dropped; the session is unchanged.
            KeyboardInterrupt: The turn was stopped; it is dropped too.
        """
        message = {"messages": [HumanMessage(text)], "turn_id": uuid.uuid4().hex}
        self._run(message, show, self._session.last_id())

    def find_unfinished(self) -> str | None:
        """Return the message whose turn was interrupted when the chat last ended; None if there is
        none.
        """
        self.settle()
        state = self._graph.get_state(self._session.config)
        if not state.tasks:  # `next` omits a finished step whose state is not written yet
            return None
        for message in reversed(state.values.get("messages", ())):
            if isinstance(message, HumanMessage):
                return str(message.text)
        return ""

    def finish(self, show: Show) -> None:
        """Finish the interrupted turn; see `answer`."""
        before = None  # the id of the last state before the interrupted turn
        for state in self._graph.get_state_history(self._session.config):
            if not state.tasks:
                before = str(state.config["configurable"]["checkpoint_id"])
                break
        self._run(None, show, before)

    def settle(self) -> None:
        """Wait for a stopped turn, which may still be waiting for the model; drop its writes."""
        if self._stopped is not None:
            turn, before = self._stopped
            turn.join()
            self._session.drop_after(before)
            self._stopped = None
        self._stop.clear()

    def _run(self, message: Any, show: Show, before: str | None) -> None:
        """Run a turn in a thread, so that Ctrl-C doesn't wait for the model."""
        self.settle()
        pieces: SimpleQueue[str | Exception | None] = SimpleQueue()
        turn = threading.Thread(target=self._stream, args=(message, pieces), daemon=True)
        turn.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise TurnFailed(_describe_failure(piece)) from piece
                show(piece)
        except BaseException:
            self._stop.set()
            self._stopped = turn, before
            self._session.drop_after(before)
            raise

    def _stream(self, state: Any, pieces: "SimpleQueue[str | Exception | None]") -> None:
        """Run the graph; queue the answer piece by piece, then None, or the exception that ended
        it.
        """
        config = {**self._session.config, "recursion_limit": MAX_STEPS}
        try:
            with _log_duration("turn"):
                for message, where in self._graph.stream(
                    state, config, stream_mode="messages", durability="sync"
                ):
                    if where["langgraph_node"] == "model" and message.text:
                        pieces.put(str(message.text))
            with _log_duration("checkpoint"):
                self._session.keep_last()
            pieces.put(None)
        except Exception as exc:  # noqa: BLE001 - the caller that waits for the answer raises it
            pieces.put(exc)

    def _call(self, state: State, config: RunnableConfig) -> dict[str, Any]:
        """Call the model. Facts about the user precede the conversation but are never stored in
        it.
        """
        messages = reversed(state["messages"])
        question = next(
            str(message.text) for message in messages if isinstance(message, HumanMessage)
        )
        with _log_duration("recall"):
            instructions = self._instructions(question)
        answer: Any = None
        with _log_duration("model"):
            for chunk in self._model.stream(
                [SystemMessage(instructions), *state["messages"]], config
            ):
                if self._stop.is_set():
                    raise TurnFailed("the turn was stopped")
                answer = chunk if answer is None else answer + chunk
        return {"messages": [_with_one_call(message_chunk_to_message(answer))]}

    def _instructions(self, question: str) -> str:
        """Return the rules, and the facts about the user that are recalled for a question."""
        try:
            facts = self._recall(question)
        except Exception as exc:  # noqa: BLE001 - the chat goes on without its memory
            _log.warning("cannot read the facts about the user: %s", exc)
            facts = []
        if not facts:
            return RULES
        lines = [
            fence.line({"at": fact.updated_at, "kind": fact.kind, "text": fact.content})
            for fact in facts
        ]
        block = fence.block("Known memory", lines, fence.new_boundary())
        head = "Known memory about the user, which may help and may be outdated."
        return f"{RULES}\n\n{head} {fence.RULE}\n{block}"

    def _tool(self) -> Any:
        memory = self._memory

        @tool
        def memory_upsert(
            content: str, state: Annotated[dict[str, Any], InjectedState], kind: str = "fact"
        ) -> str:
            """Store one durable fact, preference or constraint of the user. At most once per turn;
            if unsure, don't.

            Args:
                content: One self-contained sentence about the user.
                state: The session.
                kind: fact, preference or constraint.
            """
            with _log_duration("memory_upsert"):
                try:
                    stored = memory.add(content, kind, state["turn_id"])
                except OSError as exc:
                    _log.warning("a fact could not be stored: %s", exc)
                    return json.dumps({"stored": False, "why": "the file could not be written"})
            return json.dumps(
                {"stored": stored.id is not None, "id": stored.id, "why": stored.why or None}
            )

        return memory_upsert


def _with_one_call(message: Any) -> Any:
    """Return a model's message with at most one tool call, since a turn stores one fact."""
    if not isinstance(message, AIMessage) or len(message.tool_calls) < 2:
        return message
    extra = dict(message.additional_kwargs)
    if "tool_calls" in extra:
        extra["tool_calls"] = extra["tool_calls"][:1]
    return message.model_copy(
        update={"tool_calls": message.tool_calls[:1], "additional_kwargs": extra}
    )


def _describe_failure(exc: Exception) -> str:
    """Return the reason a turn failed: the first line of the error."""
    name = type(exc).__name__
    lines = str(exc).strip().splitlines()
    return f"{name}: {lines[0][:300]}" if lines else name


@contextmanager
def _log_duration(step: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = round(1000 * (time.perf_counter() - start), 1)
        _log.info("%s", step, extra={"fields": {"step": step, "milliseconds": spent}})
