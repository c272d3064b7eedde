"""The browser viewer, on viser: drawn by the browser, so that the machine of the simulator needs no OpenGL.

session   policy and simulator in real time, on the main thread; carries out the page's orders between steps
page      buttons, sliders, keys and numbers
scene     what is seen: a MuJoCo scene as meshes, or the pictures that an environment renders itself
server    viser's web server, behind a check of who connects

Imported by `watch.play` and `deploy.sim2sim`.
"""
