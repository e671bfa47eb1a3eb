"""The graph layer: tensors, the builder, op specifications. Depends on numpy alone."""

from .dtype import (
    BF16,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    LEAST_POSITIVE,
    DType,
    all_dtypes,
    dtype_by_id,
    dtype_by_name,
    least_above,
    register_dtype,
)
from .graph import Graph
from .opspec import (
    Case,
    Operand,
    OpSpec,
    Param,
    ParamRangeError,
    ShapeError,
    all_ops,
    exchanged,
    exchanged_by_rank,
    is_in_place,
    op_spec,
    written_owners,
)
from .tensor import Role, Shape, Tensor, contiguous_strides

__all__ = [
    "BF16", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "LEAST_POSITIVE",
    "Case", "DType", "Graph", "Operand", "OpSpec", "Param", "ParamRangeError", "Role", "Shape",
    "ShapeError", "Tensor", "all_dtypes", "all_ops", "contiguous_strides", "dtype_by_id",
    "dtype_by_name", "exchanged", "exchanged_by_rank", "is_in_place", "least_above", "op_spec",
    "register_dtype", "written_owners",
]  # fmt: skip
