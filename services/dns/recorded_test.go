package dns_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"

	"berth/services"
	"berth/services/dns/dnstest"
)

// TestAnswersOfCoreDNS compares all answers with those that CoreDNS has given to the same questions about
// the same Services. make differential-dns compares with a running CoreDNS.
func TestAnswersOfCoreDNS(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/coredns.json")
	if err != nil {
		t.Fatal(err)
	}
	var record dnstest.Record
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/dns.md")
	if err != nil {
		t.Fatal(err)
	}
	upstream, stopUpstream, err := dnstest.StartUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer stopUpstream()
	store := services.NewStore()
	record.Objects.Fill(store)
	address, stop, err := dnstest.Serve(store, upstream, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	questions := dnstest.Questions(record.Objects)
	if len(questions) < 1000 || len(questions) != len(record.Answers) {
		t.Fatalf("%d questions, %d recorded answers", len(questions), len(record.Answers))
	}
	reasons := map[string]int{}
	for _, q := range questions {
		theirs, ok := record.Answers[q.Key()]
		if !ok {
			t.Fatalf("no recorded answer to %s", q.Key())
		}
		ours, err := dnstest.Ask(address, q)
		if err != nil {
			t.Fatal(err)
		}
		if ours == theirs {
			continue
		}
		reason, ok := dnstest.Explain(q, theirs, ours)
		if !ok {
			t.Errorf("%s\nCoreDNS %s\nberth   %s", q.Key(), theirs, ours)
		}
		reasons[reason]++
	}
	unwrapped := strings.Join(strings.Fields(string(docs)), " ")
	for _, reason := range dnstest.Reasons() {
		if reasons[reason] == 0 {
			t.Errorf("no answer differs because %q", reason)
		}
		if !strings.Contains(strings.ToLower(unwrapped), strings.ToLower(reason)) {
			t.Errorf("docs/dns.md does not list the difference %q", reason)
		}
	}
	t.Logf("%d answers, different on purpose: %v", len(questions), reasons)
}
