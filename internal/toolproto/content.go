package toolproto

import (
	"encoding/base64"
	"errors"

	"palyra/internal/canon"
)

// Content is a part of some bytes. Text holds it if the part is UTF-8 without
// NUL bytes, Base64 otherwise.
type Content struct {
	Binary bool   `json:"binary"`
	Text   string `json:"text"`
	Base64 string `json:"base64"`
}

func decodeContent(s, encoding string) ([]byte, error) {
	if encoding != "base64" {
		return []byte(s), nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || base64.StdEncoding.EncodeToString(b) != s {
		return nil, usage("invalid_input", "decode content", errors.New("not base64 with padding and without line breaks"))
	}
	return b, nil
}

func checkDigest(s string) error {
	if _, err := canon.ParseDigest(s); err != nil {
		return usage("invalid_input", "read digest", err)
	}
	return nil
}

func checkPath(s string, dot bool) error {
	name, err := ParsePath(s)
	if err == nil && name == "." && !dot {
		err = usage("invalid_input", `read path "."`, errors.New("names the workspace itself"))
	}
	return err
}
