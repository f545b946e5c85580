package witness

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// history is what a witness reads of a trust directory's log-keys.json: package receipt has the
// whole.
type history struct {
	Keys []struct {
		VKey       string          `json:"vkey"`
		To         uint64          `json:"to"`
		Introduced json.RawMessage `json:"introduced"`
		Begun      json.RawMessage `json:"begun"`
	} `json:"keys"`
}

// bundle is what it reads of the receipt by which a key is introduced.
type bundle struct {
	Material struct {
		TLog []struct {
			Body  []byte `json:"canonicalizedBody"`
			Proof struct {
				Index      string   `json:"logIndex"`
				Hashes     [][]byte `json:"hashes"`
				Checkpoint struct {
					Envelope string `json:"envelope"`
				} `json:"checkpoint"`
			} `json:"inclusionProof"`
		} `json:"tlogEntries"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Payload []byte `json:"payload"`
		Type    string `json:"payloadType"`
	} `json:"dsseEnvelope"`
}

// leaf is what it reads of a log's leaf.
type leaf struct {
	Spec struct {
		Record struct {
			Data struct {
				Digest []byte `json:"digest"`
			} `json:"data"`
		} `json:"hashedRekordV002"`
	} `json:"spec"`
}

type introduction struct {
	Predicate struct {
		Act     string            `json:"act"`
		Subject string            `json:"subject"`
		Detail  map[string]string `json:"detail"`
	} `json:"predicate"`
}

// parseKeys reads a hub's keys: its log-keys.json, or log.vkey if the key was never replaced. Each
// key must be introduced by an entry of a log that the key before signed. Only a
// reader of the whole journal can judge who signed that entry, and when the next key began.
func parseKeys(b []byte) (Keys, error) {
	if !bytes.HasPrefix(b, []byte("{")) {
		vkey, ok := bytes.CutSuffix(b, []byte("\n"))
		if _, _, _, err := parseLogKey(string(vkey)); err != nil || !ok {
			return nil, errors.New("neither a log's key nor a list of them")
		}
		return Keys{{VKey: string(vkey)}}, nil
	}
	var h history
	if err := json.Unmarshal(b, &h); err != nil || len(h.Keys) == 0 {
		return nil, errors.New("no list of a log's keys")
	}
	var ks Keys
	for i, k := range h.Keys {
		if i > 0 {
			if k.Begun == nil { // introduced, and not in force
				break
			}
			if ks[i-1].To == 0 {
				return nil, fmt.Errorf("key %d: the one before it didn't end", i)
			}
			if err := introduces(ks[i-1], k.VKey, k.Introduced); err != nil {
				return nil, fmt.Errorf("key %d: %w", i, err)
			}
		}
		if _, _, _, err := parseLogKey(k.VKey); err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
		ks = append(ks, LogKey{VKey: k.VKey, To: k.To})
	}
	return ks, nil
}

// introduces checks that a log signed by before has an entry that introduces vkey.
func introduces(before LogKey, vkey string, receipt []byte) error {
	var b bundle
	if err := json.Unmarshal(receipt, &b); err != nil || len(b.Material.TLog) != 1 {
		return errors.New("no receipt of its introduction")
	}
	e := &b.Material.TLog[0]
	c, err := Keys{before}.Open([]byte(e.Proof.Checkpoint.Envelope))
	if err != nil {
		return err
	}
	index, err := strconv.ParseUint(e.Proof.Index, 10, 63)
	if err != nil {
		return errors.New("no index of its introduction")
	}
	hashes, err := hashesOf(e.Proof.Hashes)
	if err != nil {
		return err
	}
	if err := verifyInclusion(leafHash(e.Body), index, c.Size, hashes, c.Root); err != nil {
		return err
	}
	var l leaf
	pae := fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(b.Envelope.Type), b.Envelope.Type, len(b.Envelope.Payload))
	digest := sha256.Sum256(append(pae, b.Envelope.Payload...))
	if err := json.Unmarshal(e.Body, &l); err != nil || !bytes.Equal(l.Spec.Record.Data.Digest, digest[:]) {
		return errors.New("the entry isn't its introduction")
	}
	var a introduction
	if err := json.Unmarshal(b.Envelope.Payload, &a); err != nil || a.Predicate.Act != "keys.introduce" || a.Predicate.Subject != "log" || a.Predicate.Detail["vkey"] != vkey {
		return errors.New("the entry introduces another key, or none")
	}
	return nil
}

func hashesOf(list [][]byte) (out [][32]byte, err error) {
	if len(list) > 128 {
		return nil, errors.New("too many hashes")
	}
	for _, h := range list {
		if len(h) != 32 {
			return nil, fmt.Errorf("hash of %d bytes", len(h))
		}
		out = append(out, [32]byte(h))
	}
	return out, nil
}
