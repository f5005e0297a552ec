"""fitted: a plan with all degrees set for a number of samples and devices, or what does not divide."""

from __future__ import annotations

from dataclasses import replace

from taskflow.mapper.plan import HybridPlan


def fitted(plan: HybridPlan, samples: int, devices: int) -> HybridPlan:
    """Return ``plan`` with replicas and micro-batch set, for a step of so many samples on so many devices. Raises ValueError that
    says which number does not divide which."""
    data = _replicas(plan, devices)
    if data % plan.experts:
        raise ValueError(
            f"plan {plan}: e deals the experts of a layer to {plan.experts} of the {data} replicas (d) at a time, but "
            f"{plan.experts} does not divide {data}; {_divisors('e', data)}"
        )
    if plan.shard_group and data % plan.shard_group:
        raise ValueError(
            f"plan {plan}: {data} replicas cannot be dealt to groups of hsdp{plan.shard_group}: {plan.shard_group} does not divide "
            f"{data}; {_divisors('hsdp', data)}"
        )
    if plan.shares:
        if samples % (total := sum(plan.shares)):
            raise ValueError(
                f"plan {plan}: {samples} samples a step cannot be taken in micro-batches of the {total} that shares= adds up to: "
                f"{total} does not divide {samples}"
            )
        return _with_parts(plan, replace(plan, data=data, micro_batch=None))
    if plan.micro_batch is None and samples % data:
        equal, more = divmod(samples, data)
        unequal = f"; for unequal replicas write shares={','.join(str(equal + (i < more)) for i in range(data))}" if equal else ""
        raise ValueError(
            f"plan {plan}: {samples} samples a step cannot be dealt to d = {data} replicas: {data} does not divide {samples}"
            f"{unequal if data <= MOST_SHARES else ''}"
        )
    micro_batch = plan.micro_batch or (1 if plan.pipeline > 1 else samples // data)
    if samples % (together := data * micro_batch):
        raise ValueError(
            f"plan {plan}: {samples} samples a step cannot be taken in micro-batches of d x mb = {data} x {micro_batch} = "
            f"{together}: {together} does not divide {samples}"
        )
    return _with_parts(plan, replace(plan, data=data, micro_batch=micro_batch))


def _with_parts(plan: HybridPlan, fit: HybridPlan) -> HybridPlan:
    """``fit``. ValueError, about the ``plan`` as it was given, if a replica's samples do not divide into its parts."""
    if each := fit.undivided:
        raise ValueError(
            f"plan {plan}: split={plan.split} divides what a replica takes of a micro-batch, which is {each} "
            f"sample{'s' * (each > 1)}: {plan.split} does not divide {each}"
        )
    return fit


MOST_SHARES = 16  # that an error writes down


def _replicas(plan: HybridPlan, devices: int) -> int:
    """The number of replicas. ValueError if the degrees do not multiply to the devices."""
    group = plan.tensor * plan.context * plan.pipeline
    replicas = plan.data or len(plan.shares)
    data = replicas or max(1, devices // group)
    if group * data == devices:
        return data
    letters = f"t x {'c x ' * (plan.context > 1)}p"
    degrees = (plan.tensor, *[plan.context] * (plan.context > 1), plan.pipeline, data)
    if devices % group:
        why = f"{letters} = {group} does not divide {devices}"
    else:
        why = f"with {letters} = {group} there are {devices // group} replicas (d)"
    raise ValueError(
        f"plan {plan}: {letters} x d must be the {devices} devices, got {' x '.join(map(str, degrees))} = {group * data}; {why}"
    )


def _divisors(letter: str, number: int) -> str:
    """``use e2, e4 or e8``; of many divisors the smallest."""
    found = [f"{letter}{n}" for n in range(2, number + 1) if number % n == 0]
    if not found:
        return f"leave {letter} out"
    return "use " + (f"{', '.join(found[:-1])} or {found[-1]}" if 1 < len(found) <= 6 else ", ".join(found[:6]))
