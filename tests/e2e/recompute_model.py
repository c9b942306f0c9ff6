# SPDX-License-Identifier: MIT

"""A second implementation of the recompute planner's problem.

`Problem` reads the output of `--rematerialize=problem`. It replays the step
with the clones of a plan, and counts the live bytes. `Exact` states the same
problem as an integer program (OR-Tools CP-SAT). It chooses which values are
kept and which are recomputed before their first reader. The peak must be within
a budget, and the time minimal. The optimum is over every subset of the values,
so the planner's greedy choice can be compared with it.

A moment of the backward is a pair:

    (b, number of forward ops)  op b of the backward
    (b, i)                      the clone of forward op i that may run before b

A Boolean is true if op i is dropped and its clone has run when b runs:

    made(i, b) = dropped(i) and (b reads i, or some made(reader of i, b))

In the backward, a kept value is live from the start, and a dropped value from
its clone on. Both are live until their last use by an op or a clone.
"""

from ortools.sat.python import cp_model

ALIGNMENT = 64
SECOND = 10**10  # units of the objective per second: 0.1 ns


class Problem:
    """The ops of a step, the forward's first. A memory is identified by its
    root value."""

    def __init__(self, step):
        self.ops = step["ops"]
        self.count = len(self.ops)
        self.forward = sum(not op["backward"] for op in self.ops)
        self.bytes = [-(-size // ALIGNMENT) * ALIGNMENT
                      for size, _ in step["values"]]
        self.roots = list(range(len(self.bytes)))
        for value, (_, whole) in enumerate(step["values"]):
            while whole >= 0:
                self.roots[value], whole = whole, step["values"][whole][1]
        self.maker = {value: i for i, op in enumerate(self.ops)
                      for value in op["outputs"]}
        # The op whose memory an op's result is in: for a view, the op that its
        # chain of views starts from; for any other op, the op itself.
        self.head = []
        for i, op in enumerate(self.ops):
            source = self.maker[op["inputs"][0]] if op["view"] else i
            self.head.append(self.head[source] if op["view"] else i)
        self.touched = [sorted({self.roots[value]
                                for value in op["inputs"] + op["outputs"]})
                        for op in self.ops]
        self.sources = [sorted({self.maker[value] for value in op["inputs"]})
                        for op in self.ops]
        self.ties = [[(self.roots[a], self.roots[b]) for a, b in op["ties"]]
                     for op in self.ops]
        for ties in self.ties:
            for a, b in ties:
                assert self.bytes[a] == self.bytes[b], "a tie changes bytes"

    def lines(self, before):
        """Returns the step with its clones: ops, and the memories of their
        values."""
        latest, lines = {}, []
        for i in range(self.count):
            clones = [j for j in range(self.forward) if i in before[j]]
            for j in clones:
                latest[j] = i
            now = dict(latest)
            lines += [(j, now) for j in clones] + [(i, now)]
        return [(i, lambda root, now=now: (root, now.get(self.maker[root])))
                for i, now in lines]

    def peak(self, before):
        """Returns the peak of live bytes. An op may overwrite operands that it
        is the last to use."""
        lines, last = self.lines(before), {}
        for m, (i, name) in enumerate(lines):
            for root in self.touched[i]:
                last[name(root)] = m
        held, live, peak = set(), 0, 0
        for m, (i, name) in enumerate(lines):
            for a, b in self.ties[i]:
                a, b = name(a), name(b)
                if last[a] == m and a in held and b not in held:
                    held.remove(a)
                    held.add(b)
            memories = [name(root) for root in self.touched[i]]
            for memory in {name(self.roots[v]) for v in self.ops[i]["outputs"]}:
                if memory not in held:
                    held.add(memory)
                    live += self.bytes[memory[0]]
            peak = max(peak, live)
            for memory in memories:
                if memory in held and last[memory] == m:
                    held.remove(memory)
                    live -= self.bytes[memory[0]]
        return peak

    def seconds(self, before):
        return sum(op["seconds"] * len(times)
                   for op, times in zip(self.ops, before))

    def clones(self, dropped):
        """Returns, for each op, a list with the backward op before which it is
        recomputed. The list is empty if the op is not recomputed. `dropped` has
        the ops whose results, and views of them, are dropped."""
        before = [[] for _ in self.ops]
        for i in reversed(range(self.forward)):
            if self.head[i] not in dropped:
                continue
            readers = [b for b in range(self.forward, self.count)
                       if i in self.sources[b]]
            readers += [b for j in range(i + 1, self.forward)
                        if i in self.sources[j] for b in before[j]]
            before[i] = [min(readers)] if readers else []
        return before


class Exact:
    """The integer program of a problem; solve() for one budget at a time."""

    def __init__(self, problem):
        self.problem = problem
        self.model = cp_model.CpModel()
        self.dropped = {head: self.model.new_bool_var(f"dropped{head}")
                        for head in sorted(set(problem.head))
                        if head < problem.forward}
        self.known = {}
        self._readers()
        self._made()
        self.moments = sorted(
            [(b, problem.forward) for b in range(problem.forward,
                                                 problem.count)]
            + [(b, i) for i, places in enumerate(self.places)
               for b in places])
        self.time = sum(round(problem.ops[i]["seconds"] * SECOND)
                        * self.made[i][places[-1]]
                        for i, places in enumerate(self.places) if places)
        self.peak = self.model.new_int_var(
            0, sum(problem.bytes) // ALIGNMENT * 2, "peak")
        self._count_forward()
        self._count_backward()

    def chosen(self, solver):
        """Returns the heads that a solution drops."""
        return {head for head, dropped in self.dropped.items()
                if solver.boolean_value(dropped)}

    def _readers(self):
        """Collects for each op its direct readers in the backward and the
        places where it may be recomputed, and for each memory the ops that use
        it."""
        p = self.problem
        self.places, self.consumers = [[] for _ in range(p.forward)], [
            [j for j in range(i + 1, p.forward) if i in p.sources[j]]
            for i in range(p.forward)]
        self.direct = [next((b for b in range(p.forward, p.count)
                             if i in p.sources[b]), None)
                       for i in range(p.forward)]
        for i in reversed(range(p.forward)):
            places = {b for j in self.consumers[i] for b in self.places[j]}
            direct = self.direct[i]
            if direct is not None:
                places = {b for b in places if b < direct} | {direct}
            self.places[i] = sorted(places)
        self.touchers = [[] for _ in p.bytes]
        for i, roots in enumerate(p.touched):
            for root in roots:
                self.touchers[root].append(i)

    def _made(self):
        """Defines the Booleans made[i][b]: the clone of i exists when b
        runs."""
        self.made = [{} for _ in self.places]
        for i in reversed(range(len(self.places))):
            dropped = self.dropped[self.problem.head[i]]
            for b in self.places[i]:
                if b == self.direct[i]:
                    self.made[i][b] = dropped
                    continue
                asked = [made for j in self.consumers[i]
                         if (made := self._made_by(j, b)) is not None]
                self.made[i][b] = self._both(dropped, asked, f"made{i}_{b}")

    def _both(self, dropped, asked, name):
        """Returns a literal that is true if `dropped` and any of `asked`
        are."""
        made = self.model.new_bool_var(name)
        self.model.add_implication(made, dropped)
        self.model.add_bool_or(asked + [made.Not()])
        for other in asked:
            self.model.add_bool_or([dropped.Not(), other.Not(), made])
        return made

    def _made_by(self, i, b):
        """Returns the literal that is true if the clone of i exists at b; None
        if it never does."""
        places = [place for place in self.places[i] if place <= b]
        return self.made[i][places[-1]] if places else None

    def _coming(self, i, moment):
        """Returns 1 if the clone of i is made at `moment` or later, else 0;
        None if it never is."""
        b, op = moment
        places = self.places[i]
        if not places or (places[-1], i) < moment:
            return None
        past = self._made_by(i, b if i < op else b - 1)
        last = self.made[i][places[-1]]
        return last if past is None else last - past

    def _alive(self, root, moment):
        """Returns a factor that is 1 if the memory of `root` is live at a
        moment of the backward, else 0. If the factor is a new variable, its
        constraints are only lower bounds. They suffice, because the peak is
        limited: the solver gains nothing by a 1 in place of a 0."""
        p = self.problem
        maker, (b, op) = p.maker[root], moment
        touchers = self.touchers[root]
        last = max((i for i in touchers if i >= p.forward), default=-1)
        if maker >= p.forward:
            return int(min(touchers) <= b and op == p.forward and last >= b
                       or min(touchers) < b <= last)
        made = self._made_by(maker, b if maker <= op else b - 1)
        there = 1 - self.dropped[p.head[maker]]
        there = there if made is None else there + made
        if last >= b:
            return there
        coming = [term for i in touchers if i < p.forward
                  if (term := self._coming(i, moment)) is not None]
        if not coming:
            return 0
        key = (root, str(there), *map(str, coming))
        if key not in self.known:
            alive = self.known[key] = self.model.new_bool_var("")
            for term in coming:
                self.model.add(alive >= term + there - 1)
        return self.known[key]

    def _written_over(self, op, after, active):
        """Returns bytes / 64 of operands that end here and are overwritten."""
        terms, taken = [], {}
        for a, b in self.problem.ties[op]:
            over = self.model.new_bool_var("")
            self.model.add(over <= active)
            self.model.add(over <= 1 - after(a))
            taken.setdefault(("from", a), []).append(over)
            taken.setdefault(("to", b), []).append(over)
            terms.append(self.problem.bytes[a] // ALIGNMENT * over)
        for group in taken.values():
            if len(group) > 1:
                self.model.add_at_most_one(group)
        return sum(terms)

    def _count_forward(self):
        p, start = self.problem, (self.problem.forward, -1)
        last = {root: max(i for i in touchers if i < p.forward)
                for root, touchers in enumerate(self.touchers)
                if touchers and min(touchers) < p.forward}
        saved = {root: self._alive(root, start) for root in last}
        for i in range(p.forward):
            live = sum(p.bytes[root] // ALIGNMENT
                       * (1 if i <= last[root] else saved[root])
                       for root in last if min(self.touchers[root]) <= i)
            ends = lambda root, i=i: saved[root] if last[root] == i else 1
            self.model.add(live - self._written_over(i, ends, 1) <= self.peak)

    def _count_backward(self):
        p = self.problem
        roots = [root for root, touchers in enumerate(self.touchers)
                 if touchers and p.bytes[root]]
        for m, moment in enumerate(self.moments):
            b, op = moment
            live = sum(p.bytes[root] // ALIGNMENT * self._alive(root, moment)
                       for root in roots)
            after = (self.moments + [(p.count, p.forward)])[m + 1]
            ends = lambda root, after=after: self._alive(root, after)
            active = 1
            if op < p.forward:
                past = self._made_by(op, b - 1)
                active = self.made[op][b] - (0 if past is None else past)
            over = self._written_over(op if op < p.forward else b, ends,
                                      active)
            self.model.add(live - over <= self.peak)
