package images

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/agent/plan"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		err    error
		kind   plan.ErrorKind
		reason string
	}{
		{"the runtime is unavailable", status.Error(codes.Unavailable,
			"connection error: dial unix /run/c.sock: no such file"),
			plan.Unavailable, "ErrImagePull"},
		{"the runtime has no image service", status.Error(codes.Unimplemented, "unknown service"), plan.Unsupported,
			"ErrImagePull"},
		{"the registry is unavailable",
			status.Error(codes.Unknown,
				`failed to do request: Head "https://reg.io/v2/a": dial tcp: connection refused`), plan.Other,
			"ErrImagePull"},
		{"the runtime reports that the registry is unavailable", status.Error(codes.Unknown,
			"RegistryUnavailable: pinging container registry"), plan.Other, "RegistryUnavailable"},
		{"the signature is invalid", status.Error(codes.Unknown, "SignatureValidationFailed: Source image rejected"),
			plan.Other, "SignatureValidationFailed"},
		{"the registry limits requests", status.Error(codes.Unknown, "unexpected status code: 429 Too Many Requests"),
			plan.Other, "ErrImagePull"},
		{"a denial with the code NotFound", status.Error(codes.NotFound,
			"pull access denied, repository does not exist or may require authorization"), plan.Denied, "ErrImagePull"},
		{"the disk is full", status.Error(codes.ResourceExhausted, "no space left on device"), plan.NoSpace,
			"ErrImagePull"},
		{"the quota is exhausted", status.Error(codes.Unknown, "write: disk quota exceeded"), plan.NoSpace,
			"ErrImagePull"},
		{"a message was too large", status.Error(codes.ResourceExhausted, "received message larger than max"),
			plan.Other,
			"ErrImagePull"},
		{"no progress", status.Error(codes.Canceled, "context canceled"), plan.Timeout, "ErrImagePull"},
		{"a deadline", context.DeadlineExceeded, plan.Timeout, "ErrImagePull"},
		{"the runtime cannot parse the name", status.Error(codes.InvalidArgument, "failed to parse image reference"),
			plan.Invalid, "InvalidImageName"},
	} {
		if kind, reason := classify(c.err); kind != c.kind || reason != c.reason {
			t.Errorf("%s: got kind %d %s, want %d %s", c.name, kind, reason, c.kind, c.reason)
		}
	}
}

func TestPullTextContainsReasonOnce(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"RegistryUnavailable: pinging reg.io": "image pull failed for reg.io/a:1 because the registry is " +
			"unavailable: pinging reg.io",
		"SignatureValidationFailed: rejected": "image pull failed for reg.io/a:1 because the signature validation " +
			"failed: rejected",
		"manifest unknown": `pull image "reg.io/a:1": manifest unknown`,
	} {
		if got := pullError("reg.io/a:1", status.Error(codes.Unknown, message), false, nil).Error(); got != want {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
}
