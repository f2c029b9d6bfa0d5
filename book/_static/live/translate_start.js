"use strict";
/* What the figure "translate" shows at its start: its values, rounded. Written by
   `python -m tools.live_starts`. */
(globalThis.Live = globalThis.Live || {}).translateStart = {
source: ["f","o","r","t","y","-","t","w","o"],
written: ["z","w","e","i"],
hidden: [false,false,false,false,false,false,false,false,false],
weights: [[0,0,0,0,0,0,0.0003,0.9994,0.0003],[0.0009,0.0003,0.0003,0,0,0.0007,0.0001,0.9957,0.0021],[0.0142,0.0007,0.008,0.3038,0.001,0.0001,0.6547,0.0163,0.0012],[0.0104,0.0049,0.0107,0.1668,0.0178,0.0025,0.6533,0.0943,0.0394],[0,0,0,0,0,0.9983,0,0.0003,0.0013]],
links: [[5,0.9983]],
candidates: [["u",0.9232],["s",0.0004],["h",0.0004],["n",0.0003],["e",0.0003]],
room: 768,
};
