"""Forward and backward passes of a step in the order of a pipeline: micro-batch by micro-batch, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taskflow.graph import Node
from taskflow.mapper import Pass, PassKind, Pipeline
from taskflow.tasks.lower.backward import Gives, backward, put_gradients
from taskflow.tasks.lower.forward import forward, place_outputs
from taskflow.tasks.lower.late_weights import LateWeights, late_weights
from taskflow.tasks.lower.part import NotAlikeError
from taskflow.tasks.lower.part_turns import Divided, PartTurns, part_turns
from taskflow.tasks.lower.sharded import end_pass, layers_ending, scatter_gradients
from taskflow.tasks.lower.state import Lowering, Piece


def forward_and_backward(state: Lowering, pipeline: Pipeline) -> None:
    """Emit all passes. Each processor runs its operators' tasks in this order, as a device runs what is launched on one stream.

    Operators whose samples are not cut into micro-batches come before all passes, and their backward tasks after all; those of
    `Pipeline.last` the other way round. Those of `Pipeline.first` come before all passes, too, and have no backward tasks.
    """
    state.chained = True
    if state.part is not None:
        state.gathers.turns, state.across = state.emit.graph.turns, _across(state, pipeline)
    whole: list[Node] = []
    late = [state.graph.nodes[number] for number in sorted(pipeline.last(state.graph, state.strategy.configs))]
    if late and state.part is not None:
        raise NotAlikeError(f"{late[0].name} comes after all micro-batches")
    early = pipeline.first(state.graph, [node.number for node in late]) if late else frozenset()
    stages: list[list[Divided]] = [[] for _ in range(pipeline.count)]  # pieces by micro-batch
    for node in state.graph:
        pieces = _by_micro_batch(state, pipeline, node)
        if node in late:
            continue
        if pieces is None:
            whole.append(node)
        if pieces is None or node.number in early:
            forward(state, node)
        else:
            stages[pipeline.stage(node.name)].append((node, pieces))
    end_pass(state)
    for node in reversed(late):
        _begin_gradients(state, node)
    together = pipeline.all_parts(state.graph, state.strategy.configs)
    turns = [part_turns(state, stage, pipeline, together) for stage in stages]
    ending = [layers_ending(state, [node for node, _ in reversed(stage)]) for stage in stages]
    late_of = [late_weights(state, stage) if state.hides_sums else {} for stage in stages]
    for one in pipeline.passes():
        if state.part is not None:
            if one.micro_batch not in state.part.kept:
                continue
            state.ended.update(state.last)
            state.last.clear()  # whoever repeats passes chains them
        state.checkpoint()
        first = len(state.emit.graph)
        _emit(
            state, one, stages[one.stage], turns[one.stage], pipeline.schedule.weights_apart, ending[one.stage], late_of[one.stage]
        )
        end_pass(state)
        state.emit.graph.passes.append((one, first, len(state.emit.graph)))
    state.ended.update(state.last)
    if state.part is not None:
        state.last.clear()
    for node in late:
        forward(state, node, state.pieces[node.number])
    backward_pass(state, whole[::-1])


def _begin_gradients(state: Lowering, node: Node) -> None:
    """Emit the backward tasks of an operator whose forward tasks come last. They read none of what these write, and of what
    these read only what is there."""
    place_outputs(state, node)
    if node.number not in state.active:
        return
    reads = node.operator.keeps(node.specs).inputs
    for piece in state.pieces[node.number]:
        place = node.number, piece.index
        inputs = tuple(
            state.want(tensor, rect, piece.processor) if reads and not tensor.spec.differentiable else None
            for tensor, rect in zip(node.inputs, piece.reads.inputs)
        )
        state.forward_buffers[place] = (inputs, (), state.outputs[place], ())
    state.bring()
    put_gradients(state, node, state.pieces[node.number], Gives.ALL)


def _across(state: Lowering, pipeline: Pipeline) -> frozenset[str]:
    """Layers of weights, or blocks of them, that several stages share."""
    stages: dict[str, set[int]] = {}
    for node in state.graph:
        for parameter in node.parameters:
            stages.setdefault(state.layout.unit(parameter), set()).add(pipeline.stage(node.name))
    return frozenset(unit for unit, of in stages.items() if len(of) > 1)


def backward_pass(state: Lowering, nodes: Sequence[Node]) -> None:
    """Emit the backward tasks of operators that do not run in micro-batches."""
    ending = layers_ending(state, nodes)
    for node in nodes:
        if node.number in state.active:
            state.checkpoint()
            backward(state, node)
            scatter_gradients(state, ending.get(node.number, ()))
    end_pass(state)


def _by_micro_batch(state: Lowering, pipeline: Pipeline, node: Node) -> list[list[Piece]] | None:
    """The pieces of a node by micro-batch; None if it is not cut into micro-batches."""
    found: list[list[Piece]] = [[] for _ in range(pipeline.micro_batches)]
    for piece in state.pieces[node.number]:
        number = pipeline.micro_batch(node, state.strategy[node.name], piece.index if piece.of_all is None else piece.of_all)
        if number is None:
            return None
        found[number].append(piece)
    return found


def _emit(
    state: Lowering, one: Pass, stage: Sequence[Divided], turns: PartTurns, halves: bool, ending: Mapping[int, Sequence[str]],
    late: LateWeights,
) -> None:
    ahead = one.kind is PassKind.FORWARD
    gives = Gives.WEIGHTS if one.kind is PassKind.WEIGHTS else Gives.INPUTS if halves else Gives.ALL
    for at, part, last in turns.of(ahead):
        state.checkpoint()
        node, pieces = stage[at][0], turns.pieces[at][one.micro_batch][part]
        if ahead:
            forward(state, node, pieces)
        elif gives is Gives.ALL and at in late:
            backward(state, node, pieces, Gives.INPUTS)
            for other in late[at]:
                node = stage[other][0]
                backward(state, node, turns.pieces[other][one.micro_batch][part], Gives.WEIGHTS)
                scatter_gradients(state, ending.get(node.number, ()) if last else ())
        elif node.number in state.active and (node.parameters or gives is not Gives.WEIGHTS):
            backward(state, node, pieces, gives)
            scatter_gradients(state, ending.get(node.number, ()) if last else ())
