// Package linear has no code but tests: they record what real processes ask of the stores and
// what they are answered, and let porcupine find an order in which one database that does one
// thing at a time would have given the same answers.
package linear
