"""Simulators written in JAX, compiled with the learner: MuJoCo Playground (playground, playground_tasks), and
`stepwise`, which puts any of them behind the host contract."""
