"""Training runs: read `loop` first.

env_count    measured: how many environments the simulator should step
start        train and resume: simulators, run folders, checkpoints, then the loop
resuming     which settings and checkpoints a resumed run continues with
warm_start   begin with the networks of another run; transfer: for other observations and actions
loop         collect, learn, log, evaluate, save, stop
state        the one state of a run: made, saved, restored
stepped      the driver of simulators stepped from Python; simulators: those on the host and on torch tensors
fused        the driver of simulators written in JAX: one program
evaluate     complete episodes of a policy          episodes, device_episodes: returns and lengths of episodes
policy       a policy loaded from a run             eval_command: `warpsac eval`
processes    one run on several of them             supervise: the parent of each, which says when one is gone
devices      memory, compilation cache              terminal: what a user sees and sends (display, signals)
api          the public functions

Imported by watch, deploy, bench and the command line.
"""
