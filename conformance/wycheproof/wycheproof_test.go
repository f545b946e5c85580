package wycheproof

import (
	"bytes"
	"compress/zlib"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"testing"

	"github.com/c2sp/wycheproof"
	"palyra/crypt/seal/cobblestone"
)

// want is the number of vectors of that file: fewer would be another file.
const want = 35

// TestCobblestone opens the messages of Cobblestone-256: chunks swapped, doubled, cut and changed,
// other keys and contexts, and a counter of two bytes.
func TestCobblestone(t *testing.T) {
	b, err := fs.ReadFile(wycheproof.TestVectors, "c2sp_chunked_encryption_aes_256_gcm_test.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TestGroups []struct {
			AEAD, SHA string
			Tests     []struct {
				TcID                                     int
				Comment, Key, Ctx, CT, Result, MsgSha512 string
				MsgLength                                int
			}
		}
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	valid, invalid := 0, 0
	for _, g := range file.TestGroups {
		if g.AEAD != "AEAD_AES_256_GCM" || g.SHA != "SHA-512" {
			t.Fatalf("vectors for %s with %s", g.AEAD, g.SHA)
		}
		for _, v := range g.Tests {
			m, err := cobblestone.Open(unhex(t, v.Key), unhex(t, v.Ctx), inflate(t, unhex(t, v.CT)))
			switch v.Result {
			case "valid":
				valid++
				sum := sha512.Sum512(m)
				if err != nil || len(m) != v.MsgLength || hex.EncodeToString(sum[:]) != v.MsgSha512 {
					t.Errorf("%d (%s): %d bytes, %v", v.TcID, v.Comment, len(m), err)
				}
			case "invalid":
				invalid++
				if err == nil || m != nil {
					t.Errorf("%d (%s): opened to %d bytes", v.TcID, v.Comment, len(m))
				}
			default:
				t.Errorf("%d: result %q", v.TcID, v.Result)
			}
		}
	}
	if valid == 0 || valid+invalid != want {
		t.Errorf("%d valid and %d invalid vectors, want %d", valid, invalid, want)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// inflate undoes the compression that keeps the file small.
func inflate(t *testing.T, b []byte) []byte {
	t.Helper()
	r, err := zlib.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
