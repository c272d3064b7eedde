"""Run folders: all that one seed leaves behind, written and read; without JAX.

run_folder  the folder: settings, provenance, lock       rowfiles    rows of metrics, the table of evaluations
checkpoint  complete or absent, checked when read        bench_plan  what a bench is going to train
callbacks   code of a user, told while a run trains      curve       the learning curve as a picture
trackers    TensorBoard, Weights & Biases: callbacks too
policies    those kept, and which is meant               files       atomic writes, locks
pretrained  policies that come with the package        trials      those of a bench's searches

Imported by training, watch, deploy, report and bench; imports config and the table of tasks.
"""
