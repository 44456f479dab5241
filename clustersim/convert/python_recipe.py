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
    """Return the sections of the ConfigContainer that the function `name` of a recipe file returns.

    text: content of the file. name: None for the file's only recipe. Raises InputError for invalid Python, an unknown function,
    or a statement that cannot be read.
    """
    try:
        body = ast.parse(text).body
    except UNREADABLE as error:
        raise InputError(f"{path}: not valid Python ({error}); give a recipe of Megatron-Bridge") from error
    functions = {statement.name: statement for statement in body if isinstance(statement, ast.FunctionDef)}
    recipes = [key for key in functions if key.endswith("_config") and not key.startswith("_")]
    if not name and len(recipes) != 1:
        several = f"has {len(recipes)} recipes; give --recipe with one, such as {', '.join(recipes[:3])}"
        raise InputError(
            f"{path}: {several if recipes else 'has no function whose name ends in _config; give --recipe'}"
        )
    chosen = functions.get(name or recipes[0])
    if chosen is None:
        raise InputError(f"{path}: has no function of that name; {suggest(str(name), recipes)}")
    reader = RecipeReader(path, functions)
    constants = [part for part in body if isinstance(part, ast.Assign | ast.AnnAssign | ast.ImportFrom)]
    reader.run(constants, reader.constants)
    config = reader.called(chosen, (), {})
    if not isinstance(config, dict):
        raise reader.error(chosen, "returns a config that is not known")
    return config


class RecipeReader:
    """The functions and constants of a file while a recipe is read. A scope is {name: value}."""

    def __init__(self, path: str, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.path, self.functions, self.calls = path, functions, 0
        self.constants: dict[str, object] = {}

    def error(self, node: ast.stmt, why: str) -> InputError:
        """Return the error at a statement."""
        first_line = ast.unparse(node).partition("\n")[0][:100]
        return InputError(
            f"{self.path}:{node.lineno}: `{first_line}` {why} without running it; write constants, or leave it out"
        )

    def called(self, function: ast.FunctionDef, values: Sequence[object], named: Mapping[str, object]) -> object:
        """Return a function's value for its arguments, None without `return`. Raises InputError after CALLS calls."""
        self.calls += 1
        if self.calls > CALLS:
            raise self.error(function, "is called without end, as far as can be read")
        parameters = function.args
        names = [parameter.arg for parameter in parameters.args]
        defaults = dict(zip(names[::-1], parameters.defaults[::-1], strict=False))
        keywords = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        defaults |= {keyword.arg: value for keyword, value in keywords if value}
        scope: dict[str, object] = {name: UnreadValue(f"${{{name}}}") for name in names}
        scope |= {name: self.value_or_reference(value, {}) for name, value in defaults.items()}
        returned = self.run(function.body, {**scope, **dict(zip(names, values, strict=False)), **named})
        return returned[0] if returned else None

    def run(self, body: Iterable[ast.stmt], scope: dict[str, object]) -> list[object]:
        """Change a scope by statements. Return [returned value], [] without one. Raises InputError for unsupported statements."""
        for statement in body:
            try:
                match statement:
                    case ast.Expr(value=ast.Constant()) | ast.Import() | ast.Assert() | ast.AnnAssign(value=None):
                        continue
                    case ast.ImportFrom(names=names):  # a function stands for its own name, as in a saved config
                        scope |= {imported.name: imported.name for imported in names if imported.name.islower()}
                    case ast.Return(value=value):
                        return [self.value_or_reference(value, scope) if value else None]
                    case (
                        ast.Assign(targets=[target], value=value)
                        | ast.AnnAssign(target=target, value=ast.expr() as value)
                    ):
                        self.put(target, self.value_or_reference(value, scope), scope)
                    case ast.If(test=test, body=then, orelse=other):
                        if returned := self.run(then if self.value(test, scope) else other, scope):
                            return returned
                    case ast.Expr(value=ast.Call() as call):
                        self.value(call, scope)
                    case _:
                        raise self.error(statement, "cannot be read")
            except UNKNOWN as error:
                raise self.error(statement, "cannot be read") from error
        return []

    def put(self, target: ast.expr, value: object, scope: dict[str, object]) -> None:
        """Set a name, a field of a config, or each item of a tuple. Raises one of UNKNOWN if the config is not known."""
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=inner, attr=name):
                self.fields(inner, scope)[name] = value
            case ast.Tuple(elts=items):
                for item, part in zip(items, value if isinstance(value, list) else [value] * len(items), strict=True):
                    self.put(item, part, scope)
            case _:
                raise ValueError(target)

    def value_or_reference(self, node: ast.expr, scope: Mapping[str, object]) -> object:
        """Return the value of an expression, an UnreadValue if it is not known. Raises InputError if calls never end."""
        try:
            return self.value(node, scope)
        except UNKNOWN:
            return UnreadValue(f"${{line {node.lineno}, {ast.unparse(node).translate(MARKS)}}}")

    def fields(self, node: ast.expr, scope: Mapping[str, object]) -> dict[str, object]:
        """Return {key: value} of the config or section that an expression names. Raises InputError, or one of UNKNOWN."""
        if isinstance(config := self.value(node, scope), dict):
            return config
        raise ValueError(node)

    def value(self, node: ast.expr, scope: Mapping[str, object]) -> object:
        """Return the value of an expression. Raises InputError, and one of UNKNOWN for a value that is not known."""
        known, result = {**self.constants, **scope}, object()
        match node:
            case ast.Constant(value=constant):
                result = constant
            case ast.Name(id=name):
                result = known[name]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module not in known:
                result = name  # torch.float32, AttnBackend.flash
            case ast.Attribute(value=inner, attr=name):
                result = self.fields(inner, scope)[name]
            case ast.List(elts=items) | ast.Tuple(elts=items):
                result = [self.value_or_reference(item, scope) for item in items]
            case ast.Call():
                result = self.result(node, scope)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                result = COMPARED[type(sign)](self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                result = -number
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.Div):
                result = combined(op, self.value(left, scope), self.value(right, scope))
            case _:
                raise ValueError(node)
        if isinstance(result, UnreadValue):
            raise ValueError(result)
        return result

    def result(self, node: ast.Call, scope: Mapping[str, object]) -> object:
        """Return the value of a call; a constructor's arguments as a section. Raises InputError or one of UNKNOWN."""
        name = ast.unparse(node.func).rpartition(".")[2]
        if any(part.arg is None for part in node.keywords) or any(isinstance(part, ast.Starred) for part in node.args):
            raise ValueError(node)
        if inner := next((part for part in ast.walk(node.func) if isinstance(part, ast.Call)), None):
            if name != "to_megatron_provider":  # AutoBridge.from_hf_pretrained("…").to_megatron_provider(…)
                raise ValueError(node)
            return self.result(inner, scope)
        values = [self.value_or_reference(part, scope) for part in node.args]
        named = {str(part.arg): self.value_or_reference(part.value, scope) for part in node.keywords}
        if name in self.functions:
            return self.called(self.functions[name], values, named)
        if name not in LIBRARY and name[:1].isupper() and not values:
            return {"_target_": name, **named}
        row = LIBRARY[name]
        if isinstance(sets := row.get("sets"), dict):
            self.fields(node.args[0], scope).update(sets.get([*values, *named.values()][1], {}))
        return {row["field"]: values[0]} if "field" in row else deepcopy(row["value"])
