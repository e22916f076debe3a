/* chat_messages.h - a history as clients of OpenAI's API send it, made into what a chat template reads.
 *
 * - A member that is null says nothing and is taken away, and so are empty tool_calls, annotations, audio, refusal
 *   and function_call: a message that an SDK dumps with all its fields is the message.
 * - function.arguments, a JSON text, becomes the object that it says, or stays a text, as the template wants it. What
 *   is JSON and no object (nothing, null, [], 42) is {}, as vLLM has it: a model wrote it, and its history must go on.
 * - A content of null becomes "", but of calls for which the template knows better; of a message that refuses it
 * becomes the refusal.
 * - Parts, all of them text, become one text or stay parts of {"type": "text", "text"}; one whose text is null is none.
 * - A call without a type is one of a function.
 * - function_call and the role "function", OpenAI's older names, become tool_calls and "tool"; "developer" becomes
 *   "system" where a template does not name it; "reasoning" is also what templates call reasoning_content. */
#pragma once

#include "text/chat/chat_form.h"

/* Changes messages, which sentences call `name`; a second time changes nothing. Numbers of arguments come to *numbers
 * (jv_parse_numbers). ERR_ARG and ERR_UNSUPPORTED name the message and the field. */
enum status chat_messages_fit(json_t *messages, const char *name, const struct chat_form *form,
                              struct jv_numbers *numbers, struct error *err);

/* Members of request's tools and of their functions that are null become absent. Functions get an empty description,
 * and parameters without properties, where they have none and the template fails without. */
void chat_tools_fit(json_t *request, const struct chat_form *form);

/* The parts of a content, all of them text (or refusals), joined by line feeds. Sentences call the array `where`. */
enum status chat_join_parts(const json_t *parts, const char *where, struct buf *out, struct error *err);

enum { CHAT_ARGUMENTS_BYTES = 16 << 20 }; // what the values of all arguments of a history may take

/* What a JSON text of arguments says, always an object: of one written twice, as some clients do, the inner one.
 * *budget as in jv_parse_within. */
enum status chat_arguments_parse(const json_t *text, const char *where, size_t *budget, json_t **out,
                                 struct error *err);
