// Package request reads from the HTTP request of a List or a watch what it asks the API
// server for, and lets whoever made the context of a request look at it before it is sent, or
// have it sent in another form: for metadata only, for some of the objects, or as a list instead of
// a watch, which is compressed where the [Link] is slow. Why is in docs/design/decisions.md, "A request is compared
// with the identity" and "Full lists are compressed on slow links".
package request
