package provider

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"palyra/agentloop/turn"
)

// classes has the words that providers document for errors, as type or as code.
var classes = map[string]string{
	"authentication_error": turn.AuthInvalid, "invalid_api_key": turn.AuthInvalid, "account_deactivated": turn.AuthInvalid,
	"permission_error": turn.Denied, "unsupported_country_region_territory": turn.Denied,
	"rate_limit_error": turn.RateLimited, "rate_limit_exceeded": turn.RateLimited,
	"insufficient_quota": turn.Quota, "billing_error": turn.Quota, "billing_not_active": turn.Quota, "billing_hard_limit_reached": turn.Quota,
	"context_length_exceeded": turn.ContextWindow, "exceed_context_size_error": turn.ContextWindow, "request_too_large": turn.ContextWindow,
	"content_filter": turn.ContentBlocked, "content_policy_violation": turn.ContentBlocked, "invalid_prompt": turn.ContentBlocked,
	"timeout_error": turn.TimedOut,
	"api_error":     turn.Transient, "overloaded_error": turn.Transient, "server_error": turn.Transient, "slow_down": turn.Transient,
	"not_found_error": turn.Permanent, "model_not_found": turn.Permanent,
}

// phrases are in messages of errors that have no word of their own, with the class.
var phrases = []struct{ text, class string }{
	{"prompt is too long", turn.ContextWindow},
	{"exceed context limit", turn.ContextWindow},
	{"maximum context length", turn.ContextWindow},
	{"content filtering policy", turn.ContentBlocked},
	{"credit balance is too low", turn.Quota},
}

// problem is an error as a provider says it.
type problem struct{ kind, code, message string }

// problemOf reads the error in a body or an event: {"error":{…}}, {"error":"…"} or {…}. An error is
// one in whatever form, so nothing about it is Malformed.
func problemOf(data []byte) problem {
	type members struct {
		Error   json.RawMessage `json:"error"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
		Message json.RawMessage `json:"message"`
	}
	var o members
	if json.Unmarshal(data, &o) != nil {
		return problem{}
	}
	if len(o.Error) > 0 && string(o.Error) != "null" {
		if text := word(o.Error); text != "" {
			return problem{message: text}
		}
		var inner members
		if json.Unmarshal(o.Error, &inner) == nil {
			o = inner
		}
	}
	return problem{word(o.Type), word(o.Code), word(o.Message)}
}

// word returns the text of a JSON string or number, "" for something else.
func word(data json.RawMessage) (s string) {
	if json.Unmarshal(data, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(data, &n) == nil {
		return n.String()
	}
	return ""
}

// class returns the class of an error with a status of HTTP, 0 for one in a stream.
func (p problem) class(status int) string {
	for _, w := range []string{p.code, p.kind} {
		if c := classes[w]; c != "" {
			return c
		}
	}
	if status/100 == 4 || status == 0 {
		for _, ph := range phrases {
			if strings.Contains(strings.ToLower(p.message), ph.text) {
				return ph.class
			}
		}
	}
	switch {
	case status == 0 && p.kind == "invalid_request_error":
		return turn.Permanent
	case status == 0: // it had begun to answer
		return turn.Transient
	case status == 401:
		return turn.AuthInvalid
	case status == 402:
		return turn.Quota
	case status == 403:
		return turn.Denied
	case status == 408 || status == 504:
		return turn.TimedOut
	case status == 413:
		return turn.ContextWindow
	case status == 429:
		return turn.RateLimited
	case status >= 500:
		return turn.Transient
	case status >= 300:
		return turn.Permanent
	}
	return turn.Malformed // no status of an error, and no answer
}

// inStream returns the error of a stream. Its code may be a status.
func (p problem) inStream() *turn.Error {
	status, err := strconv.Atoi(p.code)
	if err != nil || status < 400 || status > 599 {
		status = 0
	}
	return p.failure(status)
}

func inStream(data []byte) *turn.Error { return problemOf(data).inStream() }

func (p problem) failure(status int) *turn.Error {
	e := &turn.Error{Class: p.class(status), Status: status}
	silent := "the provider names no reason"
	if status > 0 {
		silent = fmt.Sprintf("the provider answered %d", status)
	}
	for _, text := range []string{p.message, p.code, p.kind, silent} {
		if e.Message = clean(text); e.Message != "" {
			break
		}
	}
	return e
}

// Failure returns why an answer of HTTP isn't one. header returns an answer's header by its name,
// body is as much of the answer's as the caller has read.
func Failure(status int, header func(name string) string, body []byte, now time.Time) *turn.Error {
	e := problemOf(body).failure(status)
	if status/100 == 3 {
		e.Message = fmt.Sprintf("the provider answered %d: a redirect isn't followed", status)
	}
	if status/100 == 4 || status/100 == 5 {
		e.RetryAfter = wait(header, now).Milliseconds()
	}
	return e
}

// Lost returns the error of an exchange that err has ended, with one of turn's classes.
func Lost(class string, err error) *turn.Error {
	return &turn.Error{Class: class, Message: clean(err.Error())}
}

// mostWait bounds what a provider can say about waiting.
const mostWait = 24 * time.Hour

// resets are the headers that say when a limit begins anew, with those that say what is left of it.
var resets = []struct{ left, reset string }{
	{"x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"},
	{"x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"},
	{"anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"},
	{"anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"},
	{"anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"},
	{"anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"},
}

// wait returns how long the provider wants to be left alone: what it says of that, else until every
// limit that has come to its end begins anew.
func wait(header func(string) string, now time.Time) time.Duration {
	if d := number(header("retry-after-ms"), time.Millisecond); d > 0 {
		return d
	}
	after := header("retry-after")
	if d := number(after, time.Second); d > 0 {
		return d
	}
	for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC} { // RFC 9110 § 5.6.7
		if t, err := time.Parse(layout, after); err == nil {
			return within(t.Sub(now))
		}
	}
	var most time.Duration
	for _, r := range resets {
		if header(r.left) != "0" {
			continue
		}
		text := header(r.reset)
		if d, err := time.ParseDuration(text); err == nil {
			most = max(most, within(d))
		} else if t, err := time.Parse(time.RFC3339, text); err == nil {
			most = max(most, within(t.Sub(now)))
		}
	}
	return most
}

// number reads a number of units; 0 if it's none, or not a time to wait.
func number(text string, unit time.Duration) time.Duration {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f <= 0 {
		return 0
	}
	return within(time.Duration(min(f*float64(unit), float64(mostWait))))
}

func within(d time.Duration) time.Duration { return min(max(d, 0), mostWait) }
