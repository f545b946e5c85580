package main

import (
	"bytes"
	"errors"
	"os"
	"time"
)

// operandProbes are case 104/exchange.
var operandProbes = map[string]probe{"reread": reread}

// errApproved is the end of a program that never read anything else.
var errApproved = errors.New("the file held what was approved")

// reread reads a file again and again, and succeeds when it holds the token.
func reread(a args) (string, error) {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(a.str("file"))
		if err != nil {
			continue // between one and the other
		}
		if bytes.Contains(b, []byte(a.str("token"))) {
			time.Sleep(100 * time.Millisecond) // until it is as it was
			return "", nil
		}
	}
	return "", errApproved
}
