package reflector

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isExpired reports whether the server no longer has the history that was
// asked for. Servers before 1.18 said Gone (client-go, reflector.go).
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isTooLarge reports whether the server has not yet seen the resourceVersion
// that was asked for.
func isTooLarge(err error) bool {
	return errors.Is(err, errOlder) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// isNotUnderstood reports whether the server may not know a parameter of the
// request, and may serve the request without it.
func isNotUnderstood(err error) bool {
	switch codeOf(err) {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented:
		return true
	}
	return false
}

// codeOf returns the HTTP code of the server's answer, 0 if it did not answer.
func codeOf(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

// isFailure reports whether a watch has ended for a reason that may come again
// at the same version: an event that cannot be read, or an error within the server.
// A server that cannot be reached, is not ready or is overloaded is no failure.
func isFailure(err error, byEvent bool) bool {
	if err == nil || isExpired(err) || apierrors.IsTooManyRequests(err) || isTooLarge(err) || isNetwork(err) || isCut(err) {
		return false
	}
	if byEvent {
		return true
	}
	switch codeOf(err) {
	case 0, http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// isNetwork reports whether an event that could not be decoded is in fact a broken
// connection. client-go recognises only some of these (apimachinery,
// streamwatcher.go, and util/net, IsProbableEOF).
func isNetwork(err error) bool {
	if _, decoding := apierrors.StatusCause(err, "ClientWatchDecoding"); !decoding {
		return false
	}
	message := err.Error()
	if strings.Contains(message, "unable to decode watch event") { // The whole event has arrived.
		return false
	}
	return slices.ContainsFunc([]string{
		"http2: ", "stream error: ", "read tcp ", "i/o timeout", "connection reset", "broken pipe", "closed network connection",
		"context canceled", "context deadline exceeded",
	}, func(sign string) bool { return strings.Contains(message, sign) })
}
