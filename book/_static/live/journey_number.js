"use strict";
/* A real number on its way through the number translator: for each box what it did, a sentence, or
   one for each layer. Computed with the library: written by `python -m tools.live_journey`. */
Live.journey.number = {
source:"forty-two",written:"zwei",told:{
"encoder.tokens":["forty-two: 9 letters, 9 ids. “w” gets row 89, times √128: length 9.3."],
"encoder.positions":["“w” stands at place 7: sines and cosines of length 8.0 join it, 9.3 in all."],
"encoder.attention":["“w” asks all letters; its heads look most at “-” 0.99, “-” 0.41, “f” 0.35, “o” 0.31.","“w” asks all letters; its heads look most at “o” 0.27, “r” 0.72, “f” 0.40, “o” 0.79.","“w” asks all letters; its heads look most at “f” 0.33, “t” 0.20, “w” 0.43, “w” 0.25."],
"encoder.attention_add":["A write of length 7.9 joins the stream of “w”, 9.3 long: 12.4 in all.","A write of length 8.3 joins the stream of “w”, 9.1 long: 12.4 in all.","A write of length 5.7 joins the stream of “w”, 9.3 long: 10.9 in all."],
"encoder.attention_norm":["“w” gets mean 0 and spread 1, then gains: its length goes from 12.4 to 11.2.","“w” gets mean 0 and spread 1, then gains: its length goes from 12.4 to 11.7.","“w” gets mean 0 and spread 1, then gains: its length goes from 10.9 to 12.2."],
"encoder.feed_forward":["19 of 512 hidden units are open for “w”, and each writes.","91 of 512 hidden units are open for “w”, and each writes.","40 of 512 hidden units are open for “w”, and each writes."],
"encoder.feed_forward_add":["A write of length 13.4 joins the stream of “w”, 11.2 long: 20.2 in all.","A write of length 46.4 joins the stream of “w”, 11.7 long: 53.9 in all.","A write of length 42.9 joins the stream of “w”, 12.2 long: 50.3 in all."],
"encoder.feed_forward_norm":["“w” gets mean 0 and spread 1, then gains: its length goes from 20.2 to 9.1.","“w” gets mean 0 and spread 1, then gains: its length goes from 53.9 to 9.3.","“w” gets mean 0 and spread 1, then gains: its length goes from 50.3 to 4.8."],
"decoder.tokens":["The start and zwei: 5 ids. “i” gets row 75, times √128: length 9.7."],
"decoder.positions":["“i” stands at place 4: sines and cosines of length 8.0 join it, 8.5 in all."],
"decoder.attention":["“i” asks what is written; its heads look most at “w” 0.69, “z” 0.36, “w” 0.48, the start 0.34.","“i” asks what is written; its heads look most at “z” 0.49, “z” 0.66, “e” 0.99, “w” 0.98.","“i” asks what is written; its heads look most at “e” 1.00, “z” 0.96, “w” 0.95, the start 0.62."],
"decoder.attention_add":["A write of length 11.8 joins the stream of “i”, 8.5 long: 14.9 in all.","A write of length 9.0 joins the stream of “i”, 8.9 long: 14.3 in all.","A write of length 9.7 joins the stream of “i”, 9.5 long: 16.0 in all."],
"decoder.attention_norm":["“i” gets mean 0 and spread 1, then gains: its length goes from 14.9 to 13.0.","“i” gets mean 0 and spread 1, then gains: its length goes from 14.3 to 13.3.","“i” gets mean 0 and spread 1, then gains: its length goes from 16.0 to 11.4."],
"decoder.cross_attention":["“i” asks the source; its heads look most at “r” 0.23, “w” 0.20, “t” 0.22, “w” 0.71.","“i” asks the source; its heads look most at “y” 0.90, “w” 0.46, “-” 0.79, “w” 0.70.","“i” asks the source; its heads look most at “-” 0.83, “-” 1.00, “-” 0.98, “y” 0.93."],
"decoder.cross_attention_add":["A write of length 4.5 joins the stream of “i”, 13.0 long: 13.1 in all.","A write of length 6.9 joins the stream of “i”, 13.3 long: 16.1 in all.","A write of length 14.2 joins the stream of “i”, 11.4 long: 17.9 in all."],
"decoder.cross_attention_norm":["“i” gets mean 0 and spread 1, then gains: its length goes from 13.1 to 12.0.","“i” gets mean 0 and spread 1, then gains: its length goes from 16.1 to 12.2.","“i” gets mean 0 and spread 1, then gains: its length goes from 17.9 to 11.9."],
"decoder.feed_forward":["90 of 512 hidden units are open for “i”, and each writes.","51 of 512 hidden units are open for “i”, and each writes.","58 of 512 hidden units are open for “i”, and each writes."],
"decoder.feed_forward_add":["A write of length 47.6 joins the stream of “i”, 12.0 long: 54.8 in all.","A write of length 40.7 joins the stream of “i”, 12.2 long: 46.8 in all.","A write of length 36.8 joins the stream of “i”, 11.9 long: 42.5 in all."],
"decoder.feed_forward_norm":["“i” gets mean 0 and spread 1, then gains: its length goes from 54.8 to 8.9.","“i” gets mean 0 and spread 1, then gains: its length goes from 46.8 to 9.5.","“i” gets mean 0 and spread 1, then gains: its length goes from 42.5 to 14.4."],
"decoder.output":["262 scores: “u” gets 92%, “s” less than 1%. The next letter is “u”."],
}};
