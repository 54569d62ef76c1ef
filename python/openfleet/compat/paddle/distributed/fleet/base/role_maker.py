"""Role makers under the path of PaddlePaddle 2.x."""

from openfleet import compat
from openfleet.fleet.role import PaddleCloudRoleMaker, Role, RoleMakerBase, UserDefinedRoleMaker

__all__ = ["PaddleCloudRoleMaker", "Role", "RoleMakerBase", "UserDefinedRoleMaker"]
__getattr__ = compat.absent(__name__, __all__)
