"""Which operations of a graph become one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from .lazy import REDUCTIONS, Lazy

FUSIONS = ("none", "elementwise", "rows")
MOST_OPERANDS = 16  # of a kernel: each takes a register or two for its address


@dataclass(eq=False)
class Kernel:
    """nodes: in an order in which they can be computed. domain: the shape that its threads go
    over. outputs: the nodes that it stores."""

    nodes: list[Lazy]
    domain: tuple[int, ...]
    outputs: list[Lazy] = field(default_factory=list)

    @property
    def reduces(self) -> bool:
        return any(node.op in REDUCTIONS for node in self.nodes)

    @property
    def inputs(self) -> list[Lazy]:
        """What it reads, each once."""
        own = set(self.nodes)
        found = [arg for node in self.nodes for arg in node.inputs if arg not in own]
        return list(dict.fromkeys(found))

    @property
    def bytes(self) -> int:
        """Each input is read once, each output is written once."""
        return sum(node.meta.nbytes for node in (*self.inputs, *self.outputs))


def ordered(outputs: list[Lazy]) -> list[Lazy]:
    """All nodes, arguments before what uses them."""
    found: dict[Lazy, None] = {}
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if node in found:
            continue
        if ready:
            found[node] = None
        else:
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(node.inputs)]
    return list(found)


def unique(outputs: list[Lazy]) -> list[Lazy]:
    """The graph with equal subexpressions as one node each; its new outputs."""
    known: dict[tuple[object, ...], Lazy] = {}
    new: dict[Lazy, Lazy] = {}
    for node in ordered(outputs):
        if node.op == "leaf":
            new[node] = node
            continue
        args = tuple(new[arg] if isinstance(arg, Lazy) else arg for arg in node.args)
        key = (node.op, *(arg if isinstance(arg, Lazy) else repr(arg) for arg in args))
        key = tuple(id(part) if isinstance(part, Lazy) else part for part in key)
        new[node] = known.setdefault(key, Lazy(node.op, args, node.meta))
    return [new[node] for node in outputs]


def schedule(outputs: list[Lazy], fusion: str) -> list[Kernel | Lazy]:
    """Kernels, and views (op "squeeze") between them, in an order in which they can run."""
    order = ordered(outputs)
    users: dict[Lazy, list[Lazy]] = {node: [] for node in order}
    for node in order:
        for arg in node.inputs:
            users[arg].append(node)
    home: dict[Lazy, Kernel | Lazy] = {}  # the step that computes a node
    for node in order:
        if node.op == "leaf":
            continue
        if node.op == "squeeze":
            home[node] = node
            continue
        mine = Kernel([node], node.inputs[0].shape if node.op in REDUCTIONS else node.shape)
        home[node] = mine
        for arg in node.inputs:
            other = home.get(arg)
            if not isinstance(other, Kernel) or other is mine:
                continue
            joined = _joined(other, mine, fusion, users, outputs)
            if joined is None or _between(other, mine, home):
                continue
            mine = joined
            for each in mine.nodes:
                home[each] = mine
    place = {node: i for i, node in enumerate(order)}
    for step in home.values():
        if isinstance(step, Kernel):
            step.nodes.sort(key=place.__getitem__)
            own = set(step.nodes)
            step.outputs = [
                node
                for node in step.nodes
                if any(node is out for out in outputs)
                or any(user not in own for user in users[node])
            ]
    return _in_order(home)


def _joined(a, b, fusion, users, outputs):
    """The kernel of both, or None where they stay apart. b uses a result of a."""
    if fusion == "none" or (fusion == "elementwise" and (a.reduces or b.reduces)):
        return None
    nodes = [*a.nodes, *b.nodes]
    if a.domain == b.domain:
        domain = a.domain
    elif not b.reduces and a.reduces and b.domain == (*a.domain[:-1], 1):
        domain = a.domain  # b computes with one value per row of a
    elif not a.reduces and _broadcasts(a.domain, b.domain):
        # a is computed again for each element that it is broadcast to: nobody else may need it.
        own = set(nodes)
        needed = any(user not in own for node in a.nodes for user in users[node])
        if needed or any(node is out for node in a.nodes for out in outputs):
            return None
        domain = b.domain
    else:
        return None
    kernel = Kernel(nodes, domain)
    stored = sum(len(users[node]) > 1 for node in nodes) + 1
    return kernel if len(kernel.inputs) + stored <= MOST_OPERANDS else None


def _broadcasts(small, large):
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


def _steps_before(step, home):
    args = step.inputs
    return {home[arg] for arg in args if arg in home}


def _between(a, b, home):
    """Whether b needs a result of a third step that needs one of a: then they cannot be one."""
    seen, stack = set(), [step for step in _steps_before(b, home) if step is not a]
    while stack:
        step = stack.pop()
        if step is a:
            return True
        if step not in seen:
            seen.add(step)
            stack += _steps_before(step, home)
    return False


def _in_order(home):
    done: dict[Kernel | Lazy, None] = {}

    def visit(step):
        if step not in done:
            for before in _steps_before(step, home):
                visit(before)
            done[step] = None

    for step in home.values():
        visit(step)
    return list(done)
