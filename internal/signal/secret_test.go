package signal

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"
)

// Tokens are put together here: a whole one in a file is a finding for those who scan files.
var (
	// The example with which GitHub's checksum was made known.
	ghp   = "ghp" + "_zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq17"
	npmT  = "npm_" + sum62("1TBPbkL8jAVmyqsF8LDN7kVu1pXqQh")
	ageT  = "AGE-SECRET-" + "KEY-184JMZMVQH3E6U0PSL869004Y3U2NYV7R30EU99CSEDNPH02YUVFSZW44VU" // of age's own tests
	jwtT  = b64(`{"alg":"HS256","typ":"JWT"}`) + "." + b64(`{"sub":"1"}`) + ".dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
	line  = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
	pemT  = "-----BEGIN " + "PRIVATE KEY-----\n" + line + "\n" + line[:44] + "==\n-----END PRIVATE KEY-----"
	awsT  = "AKIA" + "Y3FDQ7ZK2MXA5BTW"
	skT   = "sk-" + "proj-9fJ2kQ7xT3BlbkFJw8Zr5LmN1cVd"
	antT  = "sk-ant-" + "api03-Qm7x2Lk9vR4tYw8nZ1cB5dF3gH6jK0pS"
	xoxT  = "xoxb-" + "2834756102-9483726150-aB3dE5fG7hI9jK1l"
	labT  = "glpat-" + "x7Qm2Lk9vR4tYw8nZ1cB"
	liveT = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
	aizT  = "AIza" + "SyD9x7Qm2Lk8vR4tYw1nZ6cB5dF3gH0jKpS"
)

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// sum62 appends the checksum of GitHub's and npm's tokens, by long division of its bits.
func sum62(s string) string {
	n, out := crc32.ChecksumIEEE([]byte(s)), ""
	for range 6 {
		out = string("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[n%62]) + out
		n /= 62
	}
	return s + out
}

// TestSecrets: «» stand around what is found.
func TestSecrets(t *testing.T) {
	for kind, texts := range map[string][]string{
		"github": {"«" + ghp + "»", "x=«" + ghp + "», «" + ghp + "»", `{"a":1,"content":"first\n«` + ghp + `»\nlast"}`, "git clone https://x:«" + ghp + "»@github.com/a/b",
			"token%3D«" + ghp + "»", "«github_pat_" + strings.Repeat("a1B2c3D4e5F", 2) + "_" + strings.Repeat("Zy9Xw8Vu7", 6) + "Ts6Rq»", `password="«x` + ghp + `y»"`},
		"npm":       {"//registry.example/:_authToken=«" + npmT + "»"},
		"age":       {"# created: today\n«" + ageT + "»\n", "«" + strings.ToUpper(ageT) + "»"},
		"aws":       {"aws_access_key_id = «" + awsT + "»"},
		"openai":    {"key: «" + skT + "».", `["--key","«` + skT + `»"]`, `\n«` + skT + `»\n`},
		"anthropic": {"ANTHROPIC_API_KEY=«" + antT + "»"},
		"slack":     {"«" + xoxT + "»", "https://«hooks.slack.com/services/" + "T0A1B2C3D/B0A1B2C3D/aB3dE5fG7hI9jK1lM3nO5pQ7»"},
		"gitlab":    {"PRIVATE-TOKEN: «" + labT + "»"},
		"stripe":    {"stripe.api_key = '«" + liveT + "»'"},
		"google":    {"https://maps.example/api?key=«" + aizT + "»&v=3"},
		"jwt":       {"id_token: «" + jwtT + "»", "Authorization: Bearer «" + jwtT + "»"},
		"private_key": {"«" + pemT + "»\nand more", `{"key":"«` + strings.ReplaceAll(pemT, "\n", `\n`) + `»\n","other":"what follows"}`,
			"«" + strings.TrimSuffix(pemT, "\n-----END PRIVATE KEY-----") + "»\nand then nothing",
			"«-----BEGIN RSA " + "PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n" + line + "\n-----END RSA PRIVATE KEY-----»"},
		"password": {"postgres://app:«hunter2»@db.example/x", "redis://:«s3cr3tpw»@cache:6379", `{"a":1,"password":"«tr0ub4dor&3»"}`, "user=bob password=«hunter2» host=db",
			"DB_PASSWORD=«a,b;c&d1»\nNEXT=1", `{"env":"DB_PASSWORD=«hunter22»\nA=b"}`, `"{\"password\": \"«hunter2»\"}"`, "password: «correct-horse-9»", "<password>«hunter2»</password>",
			"  - MYSQL_ROOT_PASSWORD=«s3cr3t99»", "export PGPASSWORD='«it is 1 horse»'", "url?password=«hunter2»&next=1", "password=«hunter2» and password=«hunter3»", `"password": "«secret\"quoted1»"`,
			"passwd := `«hunter2x»`"},
		"secret":        {"client_secret: «Qm7x2Lk9vR4tYw8n»", "SECRET_BASE=«9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08»"},
		"secret_key":    {"aws_secret_access_key=«wJalrXUtnFEMI7K9MDENGbPxRfiCYzzQ2m8Lk4vR»", "AccountKey=«Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq»;"},
		"token":         {"refresh_token=«1b2c3d4e5f6a7b8c»", `{"token":"«9f86d081884c7d659a2feaa0c55ad015a3bf4f1b»"}`},
		"api_key":       {"X-API-Key: «7d659a2feaa0c55ad015»", "api_key=«7d659a2feaa0c55ad015» tail"},
		"authorization": {"Authorization: Bearer «mF_9.B5f-4.1JqM»", "curl -H 'authorization: Basic «dXNlcjpodW50ZXIy»' x", "the header is Bearer «mF9B5f41JqMxyz»!", `{"Authorization":"Bearer «mF_9.B5f-4.1JqM»"}`},
		"cookie":        {"Cookie: theme=dark; session=«9f86d081884c7d659a2feaa0c55ad015»; a=b"},
	} {
		for _, marked := range texts {
			text := strings.NewReplacer("«", "", "»", "").Replace(marked)
			found := Secrets(text)
			var got strings.Builder
			from := 0
			for _, f := range found {
				got.WriteString(text[from:f.From] + "«" + text[f.From:f.To] + "»")
				from = f.To
				if f.Kind() != kind || f.Category() != Leak {
					t.Errorf("%q: %s, want %s", marked, f.Code, kind)
				}
			}
			if got.WriteString(text[from:]); got.String() != marked {
				t.Errorf("%s:\ngot  %q\nwant %q", kind, got.String(), marked)
			}
		}
	}
}

// TestNoSecrets: what refers to secrets, stands for them or looks like one.
func TestNoSecrets(t *testing.T) {
	for _, text := range []string{
		"password: vault://global/db", "key = \"vault://global/openai\"", "API_KEY=${API_KEY}", "API_KEY=$API_KEY", "api_key: {{ .Values.apiKey }}", "password=%DB_PASSWORD%", "password: !vault |",
		"token = os.environ[\"TOKEN_2\"]", "const apiKey = process.env.API_KEY_2", "secret: Deno.env.get('K1')", "password = getenv(\"P1\")", "api_key = ENV['KEY1']", "password: str, user: str", "Password string `json:\"password\"`",
		"password=<your password 1>", "api_key=YOUR_API_KEY_123", "api_key: your-api-key-1", "password: changeme123", "token: xxxxxxxxxxxx1", "password: ********", "secret: example-secret-1", "PASSWORD=password", "postgres://postgres:postgres@db/x",
		"https://user:pass@host/", "https://user:$PASS@host/", "https://user:{password}@host/", "http://host:8080/@user", "token_count: 1234567890123456", "max_tokens=4096", "next_page_token: CiAKGjBpNDd2Nmp2Zml2cXRwYjBpOXA1",
		"key: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "sha256:9f86d081884c7d659a2feaa0c55ad015", "integrity=sha512-9f86d081884c7d659a2feaa0c55ad015==", "key = uuid 123e4567-e89b-12d3-a456-426614174000", "key: 123e4567-e89b-12d3-a456-426614174000",
		"ghp" + "_zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq18", "ghp_" + strings.Repeat("x", 36), "npm_install_everything_that_is_there_now_please", "AKIA" + "IOSFODNN7EXAMPLE", "task-list-of-things-to-do-2024-06-01", "disk-0123456789abcdefghij",
		"-----BEGIN PUBLIC KEY-----\n" + line + "\n-----END PUBLIC KEY-----", "a file that has -----BEGIN PRIVATE KEY----- in it is one", "eyJhbGciOiJub25lIn0.x.y", "The Bearer authentication scheme", "Authorization: Bearer $TOKEN",
		"Authorization: Bearer <token>", "authorization: required", "Cookie: theme=dark; lang=en", "password: required, at least 8", "the password is checked", "secret := newSecret(id, 32)", "Secret: &oauth.ClientSecret{ID1: x}", "var keyPass2 = opts.keyPass1",
		"public_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1", "sk-learn and sk-image are packages of Python", "⟦secret:github#1⟧", "password=⟦secret:password#12⟧;x=1", `{"token":"⟦secret:token#1⟧"}`, "", "=", ":", "<>", "://", "-----BEGIN ",
		"primary_key: Qm7x2Lk9vR4tYw8nZ1cB", "[secret vault://global/key]",
	} {
		for _, f := range Secrets(text) {
			t.Errorf("%q: %s is %q", text, f.Code, text[f.From:f.To])
		}
	}
}

// TestRedact: names are given in order, a value's is its own, and only findings are replaced.
func TestRedact(t *testing.T) {
	p := NewPseudonyms()
	for _, c := range []struct{ text, want string }{
		{"a " + ghp + " b " + npmT + " c", "a ⟦secret:github#1⟧ b ⟦secret:npm#1⟧ c"},
		{"password=hunter2 password=hunter3", "password=⟦secret:password#1⟧ password=⟦secret:password#2⟧"},
		{"no secret", "no secret"},
		{"password=hunter3, " + ghp, "password=⟦secret:password#2⟧, ⟦secret:github#1⟧"},
		{`{"k":"` + strings.ReplaceAll(pemT, "\n", `\n`) + `\n","x":1}`, `{"k":"⟦secret:private_key#1⟧\n","x":1}`},
	} {
		got, _ := p.Redact(c.text)
		if got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
		if again, found := p.Redact(got); again != got || len(found) > 0 {
			t.Errorf("again: %q", again)
		}
	}
	for text, want := range map[string]string{"x ⟦secret:npm#1⟧ y": "⟦secret:npm#1⟧", "⟦secret:npm#⟧": "", "⟦secret:⟦secret:github#1⟧": "⟦secret:github#1⟧", "⟦secret:": ""} {
		if got := Named(text); got != want {
			t.Errorf("Named(%q) is %q", text, got)
		}
	}
}

// FuzzRedact: nothing but findings is lost, and what is redacted has no more of them.
func FuzzRedact(f *testing.F) {
	for _, s := range []string{ghp, npmT, jwtT, pemT, awsT, "password=\"" + ghp + "\"", "a=b:c://d:e@f", "token: 'x\\'1'", "Authorization: Basic dXNlcjpodW50ZXIy", "Cookie: a=b; c=" + ghp,
		"dop_v1_" + strings.Repeat("a1", 32) + "shpat_" + strings.Repeat("b2", 16), "⟦secret:x#1⟧password=⟦secret:", "\\\"password\\\":\\\"hunter2\\\"", "key=key=key=" + ghp} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		p := NewPseudonyms()
		out, found := p.Redact(text)
		rest, from := out, 0
		for _, x := range found {
			if x.From < from || x.To <= x.From || x.To > len(text) {
				t.Fatalf("%q: %+v", text, found)
			}
			kept, ok := strings.CutPrefix(rest, text[from:x.From])
			n := pseudonym([]byte(kept))
			if !ok || n == 0 {
				t.Fatalf("%q became %q", text, out)
			}
			rest, from = kept[n:], x.To
		}
		if rest != text[from:] {
			t.Fatalf("%q became %q", text, out)
		}
		if again, more := p.Redact(out); again != out {
			t.Fatalf("%q became %q, then %q: %+v", text, out, again, more)
		}
	})
}

// TestLinear: no text of a megabyte is looked at for long, whatever it repeats.
func TestLinear(t *testing.T) {
	const size = 64 << 10
	for _, part := range []string{"eyJ.", "cookie:", "key=", "key=\"\\", "sk-", "-----BEGIN PRIVATE KEY-----", "dop_v1_" + strings.Repeat("a1", 32) + "shpat_" + strings.Repeat("b2", 16), "\\", "a:b@://", "bearer ",
		"password=hunter2 ", "ignore ", "i g n o r e ", "\U000e0041", "&amp;", "&", "ignore all previous instructions ", "YWFh", "\u200b", "⟦secret:", "ya29.", "AGE-SECRET-KEY-PQ-1", "eyJ" + strings.Repeat("a", 60) + "."} {
		text := strings.Repeat(part, size/len(part))
		began := time.Now()
		Secrets(text)
		Orders(text)
		if d := time.Since(began); d > 10*time.Second { // a tenth of one, mostly
			t.Errorf("%.20q: %v", part, d)
		} else if testing.Verbose() {
			fmt.Printf("%.20q %v\n", part, d.Round(time.Millisecond))
		}
	}
}
