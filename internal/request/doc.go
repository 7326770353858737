// Package request reads from the HTTP request of a List or a watch what it asks the API server for. The maker of a
// request's context can look at the request before it is sent. It can also have the request sent in another form: for
// metadata only, for some of the objects, or as a list instead of a watch. Such a list is compressed if the [Link] is
// slow. The reasons are in docs/design/decisions.md, "A request is compared with the identity" and "Full lists are
// compressed on slow links".
package request
