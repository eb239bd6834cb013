package images

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/agent/plan"
)

// Reasons shown as a container's waiting reason.
const (
	reasonPull      = "ErrImagePull"
	reasonName      = "InvalidImageName"
	reasonInspect   = "ImageInspectError"
	reasonRegistry  = "RegistryUnavailable"
	reasonSignature = "SignatureValidationFailed"
)

// errClosed is what askers get after Close.
var errClosed = errors.New("the agent is leaving")

func invalidName(image string, err error) error {
	return &plan.Error{Kind: plan.Invalid, Reason: reasonName, Err: fmt.Errorf("image %q: %w", image, err)}
}

// pullError maps the end of one PullImage call. own says that the call was
// called off by us. hide lists what must not be shown.
func pullError(image string, err error, own bool, hide []string) error {
	kind, reason := plan.Canceled, reasonPull
	if !own {
		kind, reason = classify(err)
	}
	return &plan.Error{Kind: kind, Reason: reason, Err: &told{text: pullText(image, reason, redact(text(err), hide)), err: err}}
}

// pullText says what became of a pull. A runtime that knows these two reasons
// begins its message with the word, which is the waiting reason already.
func pullText(image, reason, msg string) string {
	var what string
	switch reason {
	case reasonRegistry:
		what = "the registry is unavailable"
	case reasonSignature:
		what = "the signature validation failed"
	default:
		return fmt.Sprintf("pull image %q: %s", image, msg)
	}
	return fmt.Sprintf("image pull failed for %s because %s%s", image, what, strings.TrimPrefix(msg, reason))
}

// left is the error of an asker who did not wait for the end of a pull.
func left(image string, err error) error {
	kind := plan.Canceled
	if errors.Is(err, context.DeadlineExceeded) {
		kind = plan.Timeout
	}
	return &plan.Error{Kind: kind, Reason: reasonPull, Err: fmt.Errorf("pull image %q: %w", image, err)}
}

func inspectError(image string, err error) error {
	kind := plan.Other
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, errClosed):
		kind = plan.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = plan.Timeout
	default:
		switch status.Code(err) {
		case codes.Unavailable:
			kind = plan.Unavailable
		case codes.Canceled:
			kind = plan.Canceled
		case codes.DeadlineExceeded:
			kind = plan.Timeout
		case codes.Unimplemented:
			kind = plan.Unsupported
		}
	}
	return &plan.Error{Kind: kind, Reason: reasonInspect, Err: fmt.Errorf("inspect image %q: %w", image, err)}
}

// told is an error whose text was cleaned; the original stays behind it for
// errors.Is and is never printed.
type told struct {
	text string
	err  error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.err }

// classify maps what the runtime says of a pull. Runtimes pass most answers of a
// registry on as text with the code Unknown, so the text has to be read; it is
// read here and nowhere else.
func classify(err error) (plan.Kind, string) {
	msg := strings.ToLower(text(err))
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(msg, w) {
				return true
			}
		}
		return false
	}
	switch code := status.Code(err); {
	case has("signaturevalidationfailed"):
		return plan.Other, reasonSignature
	case has("registryunavailable"):
		return plan.Other, reasonRegistry
	case code == codes.Unavailable:
		return plan.Unavailable, reasonPull
	case code == codes.Unimplemented:
		return plan.Unsupported, reasonPull
	case code == codes.ResourceExhausted && has("space", "quota"), has("no space left on device", "disk quota exceeded"):
		return plan.NoSpace, reasonPull
	case code == codes.Unauthenticated, code == codes.PermissionDenied,
		has("unauthorized", "authorization failed", "failed to authorize", "access denied", "403 forbidden", "no basic auth credentials"):
		return plan.Denied, reasonPull
	case code == codes.NotFound, has("manifest unknown", "name unknown", ": not found", "404 not found"):
		return plan.NotFound, reasonPull
	case code == codes.DeadlineExceeded, code == codes.Canceled, errors.Is(err, context.DeadlineExceeded),
		has("i/o timeout", "deadline exceeded", "context canceled"):
		// Not called off by us: the runtime gave up waiting.
		return plan.Timeout, reasonPull
	case code == codes.InvalidArgument && has("reference"):
		return plan.Invalid, reasonName
	}
	return plan.Other, reasonPull
}

// text is the message without what gRPC puts before it.
func text(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return s.Message()
	}
	return err.Error()
}

var (
	urlQuery = regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']*[^\s"':;,]`)
	urlUser  = regexp.MustCompile(`(https?://)[^\s/"'@]+@`)
)

// minHidden is the length from which on a secret is looked for in messages:
// shorter ones are in every text.
const minHidden = 4

// redact takes out of a message of the runtime what may give access: signed
// queries and user names of URLs, and the secrets that went into the call.
func redact(msg string, hide []string) string {
	msg = urlQuery.ReplaceAllString(msg, "$1?…")
	msg = urlUser.ReplaceAllString(msg, "$1…@")
	for _, h := range hide {
		if len(h) >= minHidden {
			msg = strings.ReplaceAll(msg, h, "…")
		}
	}
	return msg
}
