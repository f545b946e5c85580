package vault

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"palyra/internal/fault"
)

func TestExport(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	to, err := ParseExportRecipient(id.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	binary := string([]byte{0, 1, 255, '\n'}) + strings.Repeat("large", MaxValue/5)
	set(t, v, "vault://global/token", "value one")
	set(t, v, "vault://global/token", "value two")
	set(t, v, "vault://skill:acme/binary", binary[:MaxValue])
	expiry := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	if _, err := v.Set(t.Context(), ref(t, "vault://global/expires"), []byte("value three"), expiry); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Set(t.Context(), ref(t, "vault://global/expired"), []byte("value four"), time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	file, infos, err := v.Export(t.Context(), to, []Item{{ref(t, "vault://global/token"), 1}, {ref(t, "vault://skill:acme/binary"), 1}, {ref(t, "vault://global/expires"), 1}})
	if err != nil || len(infos) != 3 || infos[0].Version != 1 {
		t.Fatalf("%v, %v", infos, err)
	}
	if bytes.Contains(file, []byte("token")) || bytes.Contains(file, []byte(base64.StdEncoding.EncodeToString([]byte("value one")))) {
		t.Error("the export is readable")
	}
	check := func(r io.Reader) {
		t.Helper()
		var doc struct {
			Version int
			Vault   string
			Secrets []struct {
				Ref              string
				Version          int
				Created, Expires *time.Time
				Value            []byte
			}
		}
		d := json.NewDecoder(r)
		d.DisallowUnknownFields()
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		if doc.Version != 1 || doc.Vault != v.ID() || len(doc.Secrets) != 3 {
			t.Fatalf("%d, %s, %d secrets", doc.Version, doc.Vault, len(doc.Secrets))
		}
		for i, want := range []string{"value one", binary[:MaxValue], "value three"} {
			if s := doc.Secrets[i]; string(s.Value) != want || s.Ref != infos[i].Ref.String() || s.Version != 1 || s.Created == nil || (s.Expires != nil) != (i == 2) {
				t.Errorf("secret %d: %s version %d, %d bytes", i, s.Ref, s.Version, len(s.Value))
			}
		}
	}
	r, err := age.Decrypt(bytes.NewReader(file), id)
	if err != nil {
		t.Fatal(err)
	}
	check(r)
	other, _ := age.GenerateX25519Identity()
	if _, err := age.Decrypt(bytes.NewReader(file), other); err == nil {
		t.Error("another identity opens it")
	}
	if program, err := exec.LookPath("age"); err != nil {
		t.Log("no age on this host: opened by its library alone")
	} else {
		dir := t.TempDir()
		key := filepath.Join(dir, "key")
		if err := os.WriteFile(key, []byte(id.String()+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "-d", "-i", key)
		cmd.Stdin = bytes.NewReader(file)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		check(bytes.NewReader(out))
	}

	for name, c := range map[string]struct {
		items  []Item
		kind   fault.Kind
		reason string
	}{
		"none":       {nil, fault.Usage, "invalid_input"},
		"too many":   {make([]Item, MaxExport+1), fault.Usage, "invalid_input"},
		"expired":    {[]Item{{ref(t, "vault://global/token"), 1}, {ref(t, "vault://global/expired"), 1}}, fault.Refused, "secret_expired"},
		"no version": {[]Item{{ref(t, "vault://global/token"), 3}}, fault.NotFound, "not_found"},
	} {
		file, _, err := v.Export(t.Context(), to, c.items)
		if file != nil {
			t.Errorf("%s: exported", name)
		}
		refused(t, err, c.kind, c.reason)
	}
}

func TestParseExportRecipient(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	pq, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	good := id.Recipient().String()
	for _, s := range []string{good, pq.Recipient().String()} {
		if _, err := ParseExportRecipient(s); err != nil || len(s) > 2048 {
			t.Errorf("%.20s…, %d characters: %v", s, len(s), err)
		}
	}
	for _, s := range []string{"", "age1", id.String(), strings.ToUpper(good), good + "\n", good + "\n" + good, " " + good, good[:len(good)-1] + "b", "ssh-ed25519 AAAA", "# " + good} {
		_, err := ParseExportRecipient(s)
		refused(t, err, fault.Usage, "invalid_input")
	}
}
