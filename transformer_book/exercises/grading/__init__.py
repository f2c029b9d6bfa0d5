"""How an answer is judged, in every chapter: no exercise stands here."""
