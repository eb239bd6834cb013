package control

import (
	"strings"
	"testing"
	"time"
)

// TestConfigFileAuditAndLimits reads all fields of the section audit and the limits of requests. Flags take
// precedence.
func TestConfigFileAuditAndLimits(t *testing.T) {
	t.Parallel()
	f, err := ReadConfigFile(file(t, configHeader+`
maxRequestsInflight: 40
maxMutatingRequestsInflight: 0
audit:
  policyFile: /etc/policy.yaml
  log: {path: "", maxAge: 7, maxBackup: 1, maxSize: 2, mode: batch}
  webhook: {configFile: /etc/webhook, initialBackoff: 1s, mode: blocking, batchBufferSize: 3, batchMaxSize: 4,
    batchMaxWait: 5s}
`))
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	f.ApplyTo(&c, func(flag string) bool { return flag == "audit-log-maxage" })
	a := c.Audit
	if c.MaxRequestsInFlight != 40 || c.MaxMutatingRequestsInFlight != 0 {
		t.Errorf("got limits %d and %d", c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight)
	}
	if a.PolicyFile != "/etc/policy.yaml" || a.Log.Path != "" || a.Log.MaxAge != 0 || a.Log.MaxBackups != 1 ||
		a.Log.MaxSize != 2 || a.Log.Mode != "batch" {
		t.Errorf("got audit log %+v", a)
	}
	if w := a.Webhook; w.ConfigFile != "/etc/webhook" || w.InitialBackoff != time.Second || w.Mode != "blocking" ||
		w.BufferSize != 3 || w.BatchMaxSize != 4 || w.BatchMaxWait != 5*time.Second {
		t.Errorf("got webhook %+v", w)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigValidateRequestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reads, writes int
		want          string
	}{
		{-1, 1, "max-requests-inflight: -1: must not be negative"},
		{1, -1, "max-mutating-requests-inflight: -1: must not be negative"},
		{0, 0, "the sum must be greater than 0"},
	} {
		config := Default()
		config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = c.reads, c.writes
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d and %d: got %v, want %q", c.reads, c.writes, err, c.want)
		}
	}
}
