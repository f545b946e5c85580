package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// difference is a way in which sigstore-js is more generous than palyra. Its
// name stands in the table of README.md, with the reason.
type difference struct {
	name  string
	where func(path, how string) bool
}

// differences are in order: the first that fits a change counts.
var differences = []difference{
	{"fields that it ignores", func(path, _ string) bool {
		for _, p := range []string{"publicKey", "publicKey.hint", "tlogEntries[].logIndex", "integratedTime", "treeSize", "rootHash"} {
			if strings.HasSuffix(strings.TrimSuffix(path, " (name)"), p) {
				return true
			}
		}
		return false
	}},
	{"members again or unknown", func(path, how string) bool {
		return strings.HasPrefix(path, "bundle") && (how == "doubled" || how == "an unknown member before it")
	}},
	{"other spellings of a string or number", func(path, how string) bool {
		return strings.HasPrefix(path, "bundle") && (how == "replaced by […]" ||
			strings.HasSuffix(path, "inclusionProof.logIndex") && (how == "unquoted" || how == "a space inserted" || how == "a zero before it" || how == "a newline after it"))
	}},
	{"media type with a tail", func(path, _ string) bool { return path == "bundle mediaType" }},
	{"checkpoint after its text", func(path, _ string) bool {
		return path == "checkpoint" || strings.HasSuffix(path, "checkpoint.envelope")
	}},
	{"other spellings of base64", func(path, _ string) bool {
		for _, p := range []string{"payload", "sig", "hashes[]", "keyId", "canonicalizedBody"} {
			if strings.HasSuffix(path, "."+p) || strings.HasSuffix(path, p) {
				return true
			}
		}
		return false
	}},
}

// meaning is the content of a receipt for a generous reader, without unused fields. Every
// change that sigstore-js accepts must leave it alone.
func meaning(b []byte) string {
	var d struct {
		Verification struct {
			TLog []struct {
				LogID       struct{ KeyID flexible }
				KindVersion struct{ Kind, Version flexible }
				Proof       struct {
					LogIndex   flexible
					Hashes     []flexible
					Checkpoint struct{ Envelope flexible }
				} `json:"inclusionProof"`
				Body flexible `json:"canonicalizedBody"`
			} `json:"tlogEntries"`
		} `json:"verificationMaterial"`
		Envelope struct {
			Payload, PayloadType flexible
			Signatures           []struct{ Sig flexible }
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return err.Error()
	}
	var out strings.Builder
	say := func(parts ...string) {
		for _, p := range parts {
			out.WriteString(p + "\x00")
		}
	}
	say(d.Envelope.Payload.bytes(), string(d.Envelope.PayloadType))
	for _, s := range d.Envelope.Signatures {
		say(s.Sig.bytes())
	}
	for _, e := range d.Verification.TLog {
		say(e.LogID.KeyID.bytes(), string(e.KindVersion.Kind), string(e.KindVersion.Version), e.Body.bytes(),
			strings.TrimLeft(strings.TrimSpace(string(e.Proof.LogIndex)), "0"))
		for _, h := range e.Proof.Hashes {
			say(h.bytes())
		}
		text, _, _ := strings.Cut(string(e.Proof.Checkpoint.Envelope), "\n\n")
		say(text)
	}
	return out.String()
}

// flexible is a string, a number or a list of one of them.
type flexible string

// UnmarshalJSON implements json.Unmarshaler.
func (f *flexible) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(b), []byte("[")), []byte("]"))
	if len(b) > 0 && b[0] != '"' {
		*f = flexible(b)
		return nil
	}
	return json.Unmarshal(b, (*string)(f))
}

// bytes decodes base64 as Node's Buffer does: both alphabets, up to the first
// padding, and what is no digit is passed over.
func (f flexible) bytes() string {
	var digits []byte
	for _, c := range []byte(f) {
		switch {
		case c == '=':
			b, _ := base64.RawStdEncoding.DecodeString(string(digits))
			return string(b)
		case c == '-':
			digits = append(digits, '+')
		case c == '_':
			digits = append(digits, '/')
		case c == '+', c == '/', c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			digits = append(digits, c)
		}
	}
	if len(digits)%4 == 1 {
		digits = digits[:len(digits)-1]
	}
	b, _ := base64.RawStdEncoding.DecodeString(string(digits))
	return string(b)
}
