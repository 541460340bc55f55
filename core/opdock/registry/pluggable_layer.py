"""PluggableLayer: a layer that a platform replaces as a whole class."""

from __future__ import annotations

from opdock import context, ir
from opdock.registry.op_class import OpClass


class PluggableLayer(OpClass):
    """A layer whose whole class a platform may replace, constructor and weights included.

    It defines ``forward`` itself; there is no choice of methods. Register an in-tree one with
    ``@PluggableLayer.register("op_name")`` and its replacement with ``@ThatLayer.register_oot``.

    Raises: OrderError outside ``opdock.set_current_config()`` or inside a forward.
    """

    def __init__(self) -> None:
        """Prepare the module and count it under its op name."""
        super().__init__()
        config = context.get_current_config().compilation_config
        counter = config.disabled_custom_ops if self.ir is ir.native else config.enabled_custom_ops
        counter.update([getattr(self, "name", type(self).__name__)])
