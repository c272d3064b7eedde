"""The browser viewer, on viser: the browser draws, so that the machine of the simulator needs no OpenGL.

session            policy and simulator in real time, on the main thread; carries out the page's orders between steps
page               numbers, buttons, sliders and keys
view, mujoco_view  what is seen: pictures that an environment renders, or a MuJoCo scene as meshes
server             viser's web server, behind a check of who connects

Imported by `watch.play` and `deploy.sim2sim`.
"""
