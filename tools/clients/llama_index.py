"""LlamaIndex's models for servers like OpenAI's."""

PACKAGES = ["llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"]

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

CHAT = [
    ChatMessage(role="system", content="You tell stories."),
    ChatMessage(role="user", content="Tell me a story about a fox."),
]


def _model(server, **options):
    return OpenAILike(
        **{
            "model": server.model,
            "api_base": server.v1,
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 12,
            "is_chat_model": True,
            "context_window": server.context,
            "max_retries": 0,
            **options,
        }
    )


def a_chat_is_answered_and_streamed_alike(server):
    whole = _model(server).chat(CHAT).message.content
    assert whole and "".join(r.delta or "" for r in _model(server).stream_chat(CHAT)) == whole


def a_chat_model_completes_too(server):
    assert _model(server).complete("Tell me a story about a fox.").text


def a_text_is_continued(server):
    model = _model(server, is_chat_model=False)
    whole = model.complete("Once upon a time").text
    assert whole and "".join(r.delta or "" for r in model.stream_complete("Once upon a time")) == whole


def an_answer_goes_back_as_it_came(server):
    answer = _model(server).chat(CHAT).message
    assert _model(server).chat([*CHAT, answer, ChatMessage(role="user", content="And then?")]).message.content


def embeddings_are_made(server):
    model = OpenAILikeEmbedding(model_name=server.model, api_base=server.v1, api_key="none")
    assert len(model.get_text_embedding_batch(["A fox ran.", "A dog sat."])) == 2
    assert len(model.get_query_embedding("A fox ran.")) > 8
