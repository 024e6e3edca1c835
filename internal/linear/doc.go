// Package linear checks what one database has answered to real processes. Each writes down what it
// asks of the lock row or of a named lock, and the answer (see [Log]). There must be an order of
// all these calls, each between its two ends, in which a database that does one at a time gives
// the same answers: see [Check]. What it does with a call on the lock row is one step of the model
// of the protocol ([model.Row.Apply]).
package linear
