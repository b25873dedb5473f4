"""CronJobs of Kubernetes: when a container starts becomes when a command does. What the container was made of does not come along."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hourhand.core.errors import InvalidOption
from hourhand.surfaces.importing.translation import (
    Found,
    Note,
    Translation,
    Untranslatable,
    Untranslated,
    put_together,
)

ENDINGS = (".yaml", ".yml", ".json")
DEEPEST = 100
MOST_KEYS = 10_000
_ZONE = re.compile(r"(?:CRON_TZ|TZ)=(\S+)\s+(.*)")
_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_OVERLAP = {"Allow": "allow", "Forbid": "skip", "Replace": "replace"}
_TRIES = 6
"""What Kubernetes takes for backoffLimit where none is written."""
# Of a pod or a container: what changes where or as whom it runs.
_SURROUNDINGS = {
    "volumes": "volumes",
    "imagePullSecrets": "pull secrets",
    "serviceAccountName": "service account",
    "serviceAccount": "service account",
    "securityContext": "security context",
    "nodeSelector": "node selector",
    "affinity": "affinity",
    "tolerations": "tolerations",
    "resources": "resources",
    "lifecycle": "lifecycle hooks",
    "hostAliases": "host aliases",
}


def read_manifests(name: str, text: str) -> list[Any]:
    """The objects of a YAML or JSON file."""
    yaml = _yaml()
    loader = _bounded(yaml)
    try:
        _check_depth(yaml, text, loader)
        return [one for one in yaml.load_all(text, Loader=loader) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        hint = "; a template must be rendered first (helm template … | hourhand import kubernetes -)" if "{{" in text else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise InvalidOption(f"{name}{place}: not YAML: {problem}{hint}. Nothing was added") from None
    except (RecursionError, ValueError) as error:
        # A date that is none is a ValueError of the calendar, not of the parser.
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidOption(f"{name}: not readable as YAML: {what}. Nothing was added") from None


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise InvalidOption("reading manifests needs PyYAML: pip install 'hourhand[import]'") from None
    return yaml


def _bounded(yaml: Any) -> Any:
    """The safe loader, with an end to what a few merges can stand for."""

    class Bounded(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > MOST_KEYS:
                raise yaml.YAMLError(f"a mapping of more than {MOST_KEYS:,} keys")

    return Bounded


def _check_depth(yaml: Any, text: str, loader: Any) -> None:
    """Before anything is put together: that goes down as deep as the text does, and falls off the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def translate_manifests(files: Iterable[tuple[str, Sequence[Any]]], *, timezone: str | None = None) -> Translation:
    """`files`: the objects of each, by its name. `timezone`: where a manifest does not say one."""
    found: list[Found] = []
    untranslated: list[Untranslated] = []
    others = 0
    for name, objects in files:
        for one in _objects(objects):
            if one.get("kind") != "CronJob":
                others += 1
                continue
            label = _label(one)
            try:
                found.append(_translate(one, label, name, timezone))
            except Untranslatable as reason:
                untranslated.append(Untranslated(name, f"CronJob {label or 'without a name'}", str(reason)))
    words = "object that is no CronJob is" if others == 1 else "objects that are no CronJobs are"
    notes = [Note(f"{others:,} {words} passed over")] if others else []
    return put_together(found, untranslated, notes)


def _objects(given: Iterable[Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Each object; a list of them is opened."""
    for one in given:
        if not isinstance(one, Mapping):
            continue
        items = one.get("items")
        if str(one.get("kind", "")).endswith("List") and isinstance(items, list) and depth < 5:
            yield from _objects(items, depth + 1)
        else:
            yield one


def _label(one: Mapping[str, Any]) -> str:
    metadata = _mapping(one, "metadata")
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        return ""
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace not in ("", "default") else name


def _translate(one: Mapping[str, Any], label: str, file: str, timezone: str | None) -> Found:
    if not label:
        raise Untranslatable("it has no name, so that a second import could not find it again")
    spec = _mapping(one, "spec")
    job = _mapping(_mapping(spec, "jobTemplate"), "spec")
    pod = _mapping(_mapping(job, "template"), "spec")
    remarks: list[str] = []
    options = {"task": "command", **_schedule(spec, timezone, remarks), **_policies(spec, job, pod, remarks)}
    options["payload"] = _command(pod, remarks)
    suspended = spec.get("suspend") is True
    if suspended:
        remarks.append("it is suspended: it is added and paused at once; hourhand jobs resume starts it")
    return Found(label, label, options, (file, f"CronJob {label}"), tuple(remarks), paused=suspended)


def _schedule(spec: Mapping[str, Any], timezone: str | None, remarks: list[str]) -> dict[str, Any]:
    written = spec.get("schedule")
    if not isinstance(written, str) or not written.strip():
        raise Untranslatable("it has no schedule")
    zone = spec.get("timeZone")
    if prefix := _ZONE.fullmatch(written.strip()):
        zone, written = zone or prefix[1], prefix[2]
    if zone is None:
        zone = timezone
        if timezone is None and not written.lstrip().lower().startswith("@every"):
            remarks.append("it names no zone, and UTC is taken; give --tz if the clock of its cluster is in another one")
    return {"schedule": _expression(written), "timezone": "UTC" if zone is None else str(zone)}


def _expression(written: str) -> str:
    """Kubernetes has ? for *; and a day of */2 does not keep it from taking either day, as it does in cron."""
    fields = written.replace("?", "*").split()
    if len(fields) == 5:
        for place, whole in ((2, "1-31"), (4, "0-6")):
            if not any(re.fullmatch(r"\*(/1)?", one) for one in (fields[2], fields[4])):
                fields[place] = re.sub(r"\*(?=/)", whole, fields[place])
    return " ".join(fields)


def _policies(spec: Mapping[str, Any], job: Mapping[str, Any], pod: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    for name in ("parallelism", "completions"):
        if isinstance(job.get(name), int) and job[name] > 1:
            raise Untranslatable(f"{name} is {job[name]}: each firing starts several pods, and a job here has one run")
    policy = spec.get("concurrencyPolicy") or "Allow"
    if policy not in _OVERLAP:
        raise Untranslatable(f"concurrencyPolicy {policy!r} is not known")
    options: dict[str, Any] = {"overlap": _OVERLAP[policy]}
    deadline = _seconds(spec, "startingDeadlineSeconds")
    if deadline is not None:
        options |= {"misfire_grace": float(deadline), "missed_window": "SKIP"}
    tries = _seconds(job, "backoffLimit")
    options["max_attempts"] = (_TRIES if tries is None else tries) + 1
    limits = [one for one in (_seconds(job, "activeDeadlineSeconds"), _seconds(pod, "activeDeadlineSeconds")) if one]
    if limits:
        options["timeout"] = float(min(limits))
        if options["max_attempts"] > 1:
            remarks.append("activeDeadlineSeconds holds for all tries together; the timeout here holds for each of them")
    if "podFailurePolicy" in job:
        remarks.append("podFailurePolicy has no equal here: every failure is tried again")
    return options


def _seconds(of: Mapping[str, Any], name: str) -> int | None:
    value = of.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise Untranslatable(f"{name} is {value!r}, not a whole number")
    return value


def _command(pod: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        raise Untranslatable("it has no container")
    if len(containers) > 1:
        raise Untranslatable(f"it has {len(containers)} containers, and a run here is one command")
    if pod.get("initContainers"):
        raise Untranslatable("it has init containers, which run before the command; put their work into a task, or into a chain")
    container = containers[0] if isinstance(containers[0], Mapping) else {}
    if not container.get("command"):
        raise Untranslatable(
            f"its container has no command: what runs is known only to its image ({container.get('image', 'none')}); "
            "write the command into the manifest"
        )
    known, elsewhere = _environment(container)
    words = [_expanded(one, known, elsewhere) for one in (*_texts(container, "command"), *_texts(container, "args"))]
    place = container.get("workingDir")
    if "/" in words[0]:
        words[0] = posixpath.normpath(posixpath.join(str(place or ""), words[0]))
        if not words[0].startswith("/"):
            raise Untranslatable(f"{words[0]} starts from the directory of its image; write the whole path")
    payload = {"argv": words, "env": known, "cwd": str(place) if place else None}
    _remark_surroundings(pod, container, elsewhere, remarks)
    return {name: value for name, value in payload.items() if value}


def _environment(container: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """What is written in the manifest, and the names of what is kept elsewhere."""
    known: dict[str, str] = {}
    elsewhere: list[str] = []
    for one in _mappings(container, "env"):
        name, value = one.get("name"), one.get("value")
        if not isinstance(name, str):
            raise Untranslatable("one of its environment variables has no name")
        if "valueFrom" in one:
            elsewhere.append(name)
        else:
            known[name] = _expanded("" if value is None else str(value), known, ())
    for one in _mappings(container, "envFrom"):
        source = _mapping(one, "secretRef") or _mapping(one, "configMapRef")
        elsewhere.append(f"all of {source.get('name', '?')}")
    return known, elsewhere


def _expanded(word: str, known: Mapping[str, str], elsewhere: Collection[str]) -> str:
    """`$(NAME)`, which Kubernetes replaces before the command starts. What it does not know stays as it is, for a shell to
    make something of it; `$$` is a dollar sign."""

    def replaced(found: re.Match[str]) -> str:
        if found[2] in elsewhere:
            raise Untranslatable(f"its command contains {found[0]}, and the value of {found[2]} is not in the manifest")
        return "$" if found[1] == "$" else known.get(found[2], found[0])

    return _REFERENCE.sub(replaced, word)


def _remark_surroundings(
    pod: Mapping[str, Any], container: Mapping[str, Any], elsewhere: Sequence[str], remarks: list[str]
) -> None:
    left = [f"image {container['image']}"] if container.get("image") else []
    left += [said for name, said in _SURROUNDINGS.items() if pod.get(name) or container.get(name)]
    if left:
        remarks.append(f"not carried over: {', '.join(dict.fromkeys(left))}; the program must be where the worker is")
    if elsewhere:
        names = ", ".join(elsewhere)
        remarks.append(
            f"not carried over: variables whose values are kept elsewhere ({names}); have a script on the worker set them"
        )


def _texts(container: Mapping[str, Any], name: str) -> list[str]:
    value = container.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Untranslatable(f"{name} is not a list of texts")
    return value


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}


def _mappings(of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = of.get(name)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
