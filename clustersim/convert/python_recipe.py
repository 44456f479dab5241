"""A recipe of Megatron-Bridge in Python as the sections of its ConfigContainer: the syntax tree is walked, nothing is run.

Read are assignments to fields, keyword arguments of constructors, calls of functions in the same file, and `if` on comparisons.
`tables/megatron_bridge_recipes.yaml` has functions of Megatron-Bridge. Any other statement is refused with its line. A value that
is not known becomes a reference to nothing, which the reader of settings refuses where it has an effect.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy

from clustersim.convert.arithmetic import UNREADABLE, combined
from clustersim.convert.table import records_of
from clustersim.errors import InputError, suggest

LIBRARY = records_of("megatron_bridge_recipes")
"""{function of Megatron-Bridge: its row}, which the table explains."""
CALLS = 100
"""Largest number of calls of functions of the file."""
_NAMES = {"Eq": "eq", "NotEq": "ne", "Gt": "gt", "Lt": "lt", "GtE": "ge", "LtE": "le", "Is": "is_", "IsNot": "is_not"}
COMPARED: Mapping[type, Callable[[object, object], object]] = {
    getattr(ast, name): getattr(operator, function) for name, function in _NAMES.items()
}
"""Comparisons of two values."""
UNKNOWN = (*UNREADABLE, LookupError)
"""Errors of an expression whose value is not known without running it."""
MARKS = str.maketrans("{}:", "(),", "$")
"""Characters that end a reference, and what stands for them in its text."""


class UnreadValue(str):
    """A value that is not known, as a reference with the line and text of its expression."""


def recipe_sections(path: str, text: str, name: str | None) -> dict[str, object]:
    """Return the ConfigContainer of the function `name` of a file, or of its only recipe. Raises InputError if it has none."""
    try:
        body = ast.parse(text).body
    except UNREADABLE as error:
        raise InputError(f"{path}: not valid Python ({error}); give a recipe of Megatron-Bridge") from error
    functions = {one.name: one for one in body if isinstance(one, ast.FunctionDef)}
    recipes = [one for one in functions if one.endswith("_config") and not one.startswith("_")]
    if not name and len(recipes) != 1:
        several = f"has {len(recipes)} recipes; give --recipe with one, such as {', '.join(recipes[:3])}"
        raise InputError(
            f"{path}: {several if recipes else 'has no function whose name ends in _config; give --recipe'}"
        )
    chosen = functions.get(name or recipes[0])
    if chosen is None:
        raise InputError(f"{path}: has no function of that name; {suggest(str(name), recipes)}")
    reader = RecipeReader(path, functions)
    reader.run([one for one in body if isinstance(one, ast.Assign | ast.AnnAssign | ast.ImportFrom)], reader.constants)
    found = reader.called(chosen, (), {})
    if not isinstance(found, dict):
        raise reader.error(chosen, "returns a config that is not known")
    return found


class RecipeReader:
    """The functions and constants of a file while a recipe is read. A scope is {name: value}."""

    def __init__(self, path: str, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.path, self.functions, self.calls = path, functions, 0
        self.constants: dict[str, object] = {}

    def error(self, node: ast.stmt, why: str) -> InputError:
        """Return the error at a statement."""
        said = ast.unparse(node).partition("\n")[0][:100]
        return InputError(
            f"{self.path}:{node.lineno}: `{said}` {why} without running it; write constants, or leave it out"
        )

    def called(self, function: ast.FunctionDef, values: Sequence[object], named: Mapping[str, object]) -> object:
        """Return the value of a function of the file for its arguments. Raises InputError if calls never end."""
        self.calls += 1
        if self.calls > CALLS:
            raise self.error(function, "is called without end, as far as can be read")
        said = function.args
        names = [one.arg for one in said.args]
        usual = dict(zip(names[::-1], said.defaults[::-1], strict=False))
        usual |= {one.arg: value for one, value in zip(said.kwonlyargs, said.kw_defaults, strict=True) if value}
        scope: dict[str, object] = {name: UnreadValue(f"${{{name}}}") for name in names}
        scope |= {name: self.said(value, {}) for name, value in usual.items()}
        found = self.run(function.body, {**scope, **dict(zip(names, values, strict=False)), **named})
        return found[0] if found else None

    def run(self, body: Iterable[ast.stmt], scope: dict[str, object]) -> list[object]:
        """Change a scope by statements. Return [returned value], [] without one. Raises InputError for unsupported statements."""
        for statement in body:
            try:
                match statement:
                    case ast.Expr(value=ast.Constant()) | ast.Import() | ast.Assert() | ast.AnnAssign(value=None):
                        continue
                    case ast.ImportFrom(names=names):  # a function stands for its own name, as in a saved config
                        scope |= {one.name: one.name for one in names if one.name.islower()}
                    case ast.Return(value=value):
                        return [self.said(value, scope) if value else None]
                    case (
                        ast.Assign(targets=[target], value=value)
                        | ast.AnnAssign(target=target, value=ast.expr() as value)
                    ):
                        self.put(target, self.said(value, scope), scope)
                    case ast.If(test=test, body=then, orelse=other):
                        if found := self.run(then if self.value(test, scope) else other, scope):
                            return found
                    case ast.Expr(value=ast.Call() as call):
                        self.value(call, scope)
                    case _:
                        raise self.error(statement, "cannot be read")
            except UNKNOWN as error:
                raise self.error(statement, "cannot be read") from error
        return []

    def put(self, target: ast.expr, value: object, scope: dict[str, object]) -> None:
        """Set a name, a field of a config, or several of them. Raises one of UNKNOWN if the config is not known."""
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=inner, attr=name):
                self.fields(inner, scope)[name] = value
            case ast.Tuple(elts=items):
                for item, one in zip(items, value if isinstance(value, list) else [value] * len(items), strict=True):
                    self.put(item, one, scope)
            case _:
                raise ValueError(target)

    def said(self, node: ast.expr, scope: Mapping[str, object]) -> object:
        """Return the value of an expression, an UnreadValue if it is not known. Raises InputError if calls never end."""
        try:
            return self.value(node, scope)
        except UNKNOWN:
            return UnreadValue(f"${{line {node.lineno}, {ast.unparse(node).translate(MARKS)}}}")

    def fields(self, node: ast.expr, scope: Mapping[str, object]) -> dict[str, object]:
        """Return the config or section that an expression names. Raises as `value` does."""
        if isinstance(found := self.value(node, scope), dict):
            return found
        raise ValueError(node)

    def value(self, node: ast.expr, scope: Mapping[str, object]) -> object:
        """Return the value of an expression. Raises InputError, and one of UNKNOWN for a value that is not known."""
        known, found = {**self.constants, **scope}, object()
        match node:
            case ast.Constant(value=constant):
                found = constant
            case ast.Name(id=name):
                found = known[name]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module not in known:
                found = name  # torch.float32, AttnBackend.flash
            case ast.Attribute(value=inner, attr=name):
                found = self.fields(inner, scope)[name]
            case ast.List(elts=items) | ast.Tuple(elts=items):
                found = [self.said(item, scope) for item in items]
            case ast.Call():
                found = self.result(node, scope)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                found = COMPARED[type(sign)](self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                found = -number
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.Div):
                found = combined(op, self.value(left, scope), self.value(right, scope))
            case _:
                raise ValueError(node)
        if isinstance(found, UnreadValue):
            raise ValueError(found)
        return found

    def result(self, node: ast.Call, scope: Mapping[str, object]) -> object:
        """Return the value of a call: of a function of the file or the library, or a constructor's arguments as a section."""
        name = ast.unparse(node.func).rpartition(".")[2]
        if any(one.arg is None for one in node.keywords) or any(isinstance(one, ast.Starred) for one in node.args):
            raise ValueError(node)
        if inner := next((one for one in ast.walk(node.func) if isinstance(one, ast.Call)), None):
            if name != "to_megatron_provider":  # AutoBridge.from_hf_pretrained("…").to_megatron_provider(…)
                raise ValueError(node)
            return self.result(inner, scope)
        values = [self.said(one, scope) for one in node.args]
        named = {str(one.arg): self.said(one.value, scope) for one in node.keywords}
        if name in self.functions:
            return self.called(self.functions[name], values, named)
        if name not in LIBRARY and name[:1].isupper() and not values:
            return {"_target_": name, **named}
        row = LIBRARY[name]
        if isinstance(sets := row.get("sets"), dict):
            self.fields(node.args[0], scope).update(sets.get([*values, *named.values()][1], {}))
        return {row["field"]: values[0]} if "field" in row else deepcopy(row["value"])
