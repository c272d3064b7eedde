"""The two files that IsaacLab's Cartpole loads, written here: the originals would have to be fetched."""

from __future__ import annotations

from pathlib import Path

GROUND = """#usda 1.0
(
    defaultPrim = "Ground"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "Ground"
{
    def Xform "Environment"
    {
        float3 xformOp:scale = (1, 1, 1)
        uniform token[] xformOpOrder = ["xformOp:scale"]

        def Mesh "Geometry"
        {
            int[] faceVertexCounts = [4]
            int[] faceVertexIndices = [0, 1, 2, 3]
            point3f[] points = [(-50, -50, 0), (50, -50, 0), (50, 50, 0), (-50, 50, 0)]
            texCoord2f[] primvars:st = [(0, 0), (1, 0), (1, 1), (0, 1)] (
                interpolation = "vertex"
            )
        }
    }

    def Plane "CollisionPlane" (
        prepend apiSchemas = ["PhysicsCollisionAPI"]
    )
    {
        uniform token axis = "Z"
    }
}
"""

BODY = """
    def Xform "{name}" (
        prepend apiSchemas = ["PhysicsRigidBodyAPI", "PhysicsMassAPI"]
    )
    {{
        float physics:mass = {mass}
        point3f physics:centerOfMass = (0, 0, {middle})
        float3 physics:diagonalInertia = (0.1, 0.1, 0.1)
    }}
"""

CARTPOLE = (
    """#usda 1.0
(
    defaultPrim = "cartpole"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "cartpole" (
    prepend apiSchemas = ["PhysicsArticulationRootAPI"]
)
{
"""
    + BODY.format(name="slider", mass=1, middle=0)
    + BODY.format(name="cart", mass=1, middle=0)
    + BODY.format(name="pole", mass=1, middle=0.5)
    + """
    def PhysicsFixedJoint "root_joint"
    {
        rel physics:body1 = </cartpole/slider>
    }

    def PhysicsPrismaticJoint "slider_to_cart" (
        prepend apiSchemas = ["PhysicsDriveAPI:linear"]
    )
    {
        uniform token physics:axis = "X"
        rel physics:body0 = </cartpole/slider>
        rel physics:body1 = </cartpole/cart>
        float physics:lowerLimit = -4
        float physics:upperLimit = 4
    }

    def PhysicsRevoluteJoint "cart_to_pole" (
        prepend apiSchemas = ["PhysicsDriveAPI:angular"]
    )
    {
        uniform token physics:axis = "Y"
        rel physics:body0 = </cartpole/cart>
        rel physics:body1 = </cartpole/pole>
    }
}
"""
)

FILES = {
    "Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda": GROUND,
    "Robots/Classic/Cartpole/cartpole.usd": CARTPOLE,
}


def write(root: Path) -> None:
    """Fill a folder that ISAACSIM_ASSET_ROOT can name."""
    for name, text in FILES.items():
        path = root / "Isaac" / "IsaacLab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
