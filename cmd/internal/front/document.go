package front

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"palyra/internal/fault"
)

// Document is what a command prints with --json: one JSON object with sorted
// keys and "schema": "palyra.<cmd>/v1". A field is added, never changed in
// meaning; a change in meaning is a v2.
type Document map[string]any

// Write prints d on w, indented, keys sorted at every depth.
func (d Document) Write(w io.Writer, cmd string) error {
	out := Document{"schema": "palyra." + cmd + "/v1"}
	for k, v := range d {
		out[k] = v
	}
	// Through generic maps and back: struct fields come in declaration order,
	// map keys come sorted. Numbers stay text so that none loses a digit.
	b, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode %s document: %w", cmd, err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var generic any
	if err := dec.Decode(&generic); err != nil {
		return fmt.Errorf("encode %s document: %w", cmd, err)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(generic)
}

// ErrorFields is how an error appears in a document.
func ErrorFields(err error) Document {
	if err == nil {
		return nil
	}
	d := Document{"kind": fault.KindOf(err).String(), "reason": fault.ReasonOf(err), "message": err.Error()}
	if h := Hint(err); h != "" {
		d["hint"] = h
	}
	return d
}

// OutputFields holds bytes that a program wrote: as text where they are UTF-8,
// as base64 where JSON could not carry them.
func OutputFields(b []byte) Document {
	if utf8.Valid(b) {
		return Document{"encoding": "utf-8", "data": string(b)}
	}
	return Document{"encoding": "base64", "data": base64.StdEncoding.EncodeToString(b)}
}
