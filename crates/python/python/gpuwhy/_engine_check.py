"""Whether the table of spans holds for a package, by its source alone: nothing of it is imported.

    python -m gpuwhy.engine check [--json] [--extract FILE] [PATH…]

A path is a folder that holds an engine's package (an environment's `site-packages`, an unpacked wheel), or an extract
that `--extract` made of one; without a path it is where Python finds packages. The status is 1 if a span that the
table promises for a version is not there.
"""

import ast
import hashlib
import json
import os
import re
import sys

from . import _engine_table as table

# A source file larger than this is not read.
_MOST = 8 << 20


class Package:
    """An engine's source: by module, what is defined, with its parameters."""

    def __init__(self, engine, version, names, scopes, files, where):
        self.engine, self.version, self.names = engine, version, names
        self.scopes, self.files, self.where = set(scopes), files, where


def _signature(node):
    given = node.args
    names = [argument.arg for argument in given.posonlyargs + given.args]
    names += ["*" + given.vararg.arg] if given.vararg else []
    names += [argument.arg + "=" for argument in given.kwonlyargs]
    names += ["**" + given.kwarg.arg] if given.kwarg else []
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{word}({', '.join(names)})"


def _defined(tree):
    """Names that a module defines, also inside of conditions, one class deep."""
    found = {}

    def look(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + node.name] = _signature(node)
            elif isinstance(node, ast.ClassDef) and not prefix:
                look(node.body, node.name + ".")
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(prefix + target.id, "=")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.setdefault(prefix + node.target.id, "=")
            elif isinstance(node, (ast.If, ast.Try)):
                look(node.body, prefix)
                look(node.orelse, prefix)

    look(tree.body, "")
    return found


def _named_scopes(tree):
    """The texts that `record_function_or_nullcontext` is called with."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        text = node.args[0]
        if name == "record_function_or_nullcontext" and isinstance(text, ast.Constant):
            yield text.value


def _version(folder, engine):
    """As the metadata beside the package says."""
    pattern = re.compile(re.escape(engine) + r"(?:[_-]cpu)?-([^-]+)\.dist-info$", re.I)
    versions = [found.group(1) for name in os.listdir(folder) if (found := pattern.match(name))]
    return max(versions, key=table.number) if versions else ""


def read(folder, engine):
    """The package of an engine in a folder; `None` if it is not there."""
    if not os.path.isdir(os.path.join(folder, engine)):
        return None
    names, scopes, files = {}, set(), {}
    wanted = {module: module.replace(".", "/") + ".py" for module in table.modules(engine)}
    if any(row[5] == "scopes" for row in table.ENGINES[engine]):
        for module in ("vllm.v1.engine.llm_engine", "vllm.v1.spec_decode.ngram_proposer_gpu"):
            wanted[module] = module.replace(".", "/") + ".py"
    promised = {row[3] for row in table.ENGINES[engine]}
    for module, path in sorted(wanted.items()):
        try:
            with open(os.path.join(folder, path), "rb") as file:
                text = file.read(_MOST)
            tree = ast.parse(text)
        except FileNotFoundError:
            continue
        except (OSError, SyntaxError, ValueError) as error:
            print(f"{os.path.join(folder, path)}: {error}", file=sys.stderr)
            continue
        files[path] = hashlib.sha256(text).hexdigest()
        defined = _defined(tree)
        names[module] = {name: defined[name] for name in sorted(promised) if name in defined}
        scopes.update(_named_scopes(tree))
    return Package(engine, _version(folder, engine), names, scopes, files, folder)


def extract(package):
    """What a check needs of a package: signatures of the table's names, scopes, and hashes of the files."""
    return {
        "engine": package.engine,
        "version": package.version,
        "names": {module: names for module, names in package.names.items() if names},
        "scopes": sorted(package.scopes),
        "sha256": package.files,
    }


def _extracts(path):
    with open(path, encoding="utf-8") as file:
        for made in json.load(file)["packages"]:
            yield Package(
                made["engine"], made["version"], made["names"], made["scopes"], made["sha256"], path
            )


def packages(path):
    """What a path holds."""
    if os.path.isfile(path):
        yield from _extracts(path)
        return
    for engine in table.ENGINES:
        package = read(path, engine)
        if package is not None:
            yield package


def resolve(package):
    """For each span where it was found and what is missing: {span: (found, missing)}."""
    spans = {}
    for _, _, module, name, span, kind, _, _ in table.rows(package.engine, package.version):
        found, missing = spans.setdefault(span or "scopes", ([], []))
        place, defined = f"{module}:{name}", package.names.get(module, {}).get(name)
        if defined is not None and defined.startswith("async ") and kind not in ("hook", "always"):
            # Its call ends before it has done anything.
            missing.append(place + " is a coroutine function")
        else:
            (found if defined is not None else missing).append(place)
    for own, span in table.scopes(package.engine, package.version).items():
        found, missing = spans.setdefault(span, ([], []))
        (found if own in package.scopes else missing).append(f"scope {own!r}")
    return spans


def lacking(package, spans):
    """The rows of the seed's table that a version cannot show, with the reason."""
    if package.engine != "vllm":
        return []
    return [span for span in table.TABLE_5 if not spans.get(span, ((), ()))[0]]


def main(arguments):
    """The command; gives its status."""
    as_json, target, paths = False, None, []
    if arguments[:1] != ["check"]:
        print(__doc__, file=sys.stderr)
        return 2
    rest = iter(arguments[1:])
    for word in rest:
        if word == "--json":
            as_json = True
        elif word == "--extract":
            target = next(rest, None)
        elif word.startswith("-"):
            print(f"there is no option {word}", file=sys.stderr)
            return 2
        else:
            paths.append(word)
    try:
        found = [package for path in paths or sys.path for package in packages(path or ".")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{paths}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if not found:
        print("no engine there: " + ", ".join(table.ENGINES), file=sys.stderr)
        return 2
    if target is not None:
        with open(target, "w", encoding="utf-8") as file:
            json.dump({"packages": [extract(one) for one in found]}, file, indent=1)
            file.write("\n")
    return _report(found, as_json)


def _report(found, as_json):
    status, document = 0, []
    for package in found:
        spans = resolve(package)
        missing = {span: parts[1] for span, parts in spans.items() if parts[1]}
        absent = lacking(package, spans)
        status = 1 if missing else status
        document.append(
            {
                "engine": package.engine,
                "version": package.version,
                "spans": {span: parts[0] for span, parts in sorted(spans.items())},
                "missing": missing,
                "not_in_this_version": absent,
            }
        )
        if not as_json:
            count = sum(len(parts[0]) for parts in spans.values())
            print(f"{package.engine} {package.version or '?'}: {len(spans)} spans, {count} places")
            for span, places in sorted(missing.items()):
                for place in places:
                    print(f"  missing: {span}: {place}")
            for span in absent:
                print(f"  not in this version: {span}")
    if as_json:
        print(json.dumps(document, indent=1))
    return status
